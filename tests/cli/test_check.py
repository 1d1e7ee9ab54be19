"""`laar check` finds what `laar serve` would refuse: file, line, key, value and fix."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from laar.cli import app
from laar.errors import SettingError
from laar.faults import Fault
from laar.server.checking import faults
from laar.server.runner import Runner
from laar.settings import load
from support.waiting import free_ports

FILES = {
    "endpoints.yaml": "endpoints:\n- {address: '127.0.0.1:8000', model: m}\n",
    "short.token": "abc",
    "not.pem": "nothing of a certificate",
    "old.json": '{"artifact_schema": 99}',
    "faulty.yaml": "endpoints:\n- address: 127.0.0.1:8000\n  modle: m\n",
    "file": "",
}


class Wrong:
    """A settings file, and the error to be reported."""

    def __init__(
        self,
        name: str,
        text: str,
        *says: str,
        line: int | None = None,
        endpoints: bool = True,
        file: str = "laar.yaml",
    ) -> None:
        self.name, self.text, self.says = name, text, says
        self.line, self.endpoints, self.file = line, endpoints, file


WRONG = [
    # keys
    Wrong("top key", "routng: {}", "routng", "did you mean `routing`?", line=1),
    Wrong("nested key", "routing:\n  polcy: x", "routing.polcy", "`policy`?", line=2),
    Wrong("nothing like it", "flow:\n  zzz: 1", "flow.zzz", "unknown key", "enabled", line=2),
    Wrong("key in a list", "context:\n  routes: [{nme: a}]", "routes[0].nme", "`name`?", line=2),
    Wrong("twice", "flow: {}\nflow: {}", "'flow' occurs twice; keep one", line=2),
    # the file
    Wrong("not YAML", "routing: [", "not valid YAML", "brackets", line=1, endpoints=False),
    Wrong("a tab", "routing:\n\tpolicy: laar", "not valid YAML", line=2),
    Wrong("a list", "- a\n- b", "['a', 'b'] is not a map", "key: value", endpoints=False),
    Wrong("empty", "", "laar.yaml:1: no endpoints: give", "`endpoints_file`", endpoints=False),
    Wrong("no file", "", "no such file", "laar init --endpoint", file="none.yaml"),
    # values
    Wrong("no number", "routing:\n  max_waiting: x", "max_waiting", "'x'", "a number", line=2),
    Wrong("too small", "routing:\n  max_waiting: -1", "max_waiting", "-1", "at least 0", line=2),
    Wrong("too large", "routing:\n  enforce_share: 50", "50", "at most 1", line=2),
    Wrong("not whole", "routing:\n  fallbacks: 1.5", "1.5", "whole number", line=2),
    Wrong("no boolean", "flow:\n  enabled: maybe", "'maybe'", "`true` or `false`", line=2),
    Wrong("no choice", "routing:\n  mode: sometimes", "'sometimes'", "'enforce'", line=2),
    Wrong("policy", "routing:\n  policy: laaar", "`laaar`", "did you mean `laar`?", line=2),
    Wrong("parameter", "routing:\n  baselines: {llm-d: {x: 1}}", "unknown parameter `x`", line=2),
    Wrong("routes", "context:\n  routes: [{name: a}, {name: a}]", "two routes", "rename one"),
    # endpoints
    Wrong("no name", "endpoints: [{address: 'https://127.0.0.1', model: m}]", "needs `sni`"),
    Wrong("query", "endpoints: [{address: 'a:1/v1?x', model: m}]", "must not have a query"),
    Wrong("scheme", "endpoints: [{address: 'ftp://a:1', model: m}]", "write host:port, http://"),
    Wrong(
        "CA",
        "endpoints:\n- {address: 'a:1', model: m}\n"
        "- {address: 'https://a', model: m, ca_file: x.pem}",
        "endpoints[1]: ",
        "x.pem is not a file",
        line=3,
    ),
    Wrong(
        "key", "endpoints: [{address: 'a:1', model: m, key_file: x.key}]", "x.key: can't be read"
    ),
    Wrong("no port", "endpoints: [{address: a, model: m}]", "'a' has no port", "host:port"),
    Wrong("bad port", "endpoints: [{address: 'a:x', model: m}]", "'a:x'", "from 1 to 65535"),
    Wrong("no model", "endpoints: [{address: 'a:1'}]", "needs `model: name`", line=1),
    Wrong(
        "same address",
        "endpoints: [{address: 'a:1', model: m}, {address: 'a:1', model: n}]",
        "[1] has the same address as [0] (a:1); keep one",
    ),
    Wrong(
        "same address with other paths",
        "endpoints: [{address: 'https://a/v1', model: m}, {address: 'https://a/v2', model: n}]",
        "[1] has the same address as [0] (a:443); keep one",
    ),
    Wrong("engine", "endpoints: [{address: 'a:1', model: m, engine: exl}]", "'exl'", "'vllm'"),
    Wrong(
        "metrics",
        "endpoints: [{address: 'a:1', model: m, metrics_url: /m}]",
        "'/m'",
        "http or https URL",
    ),
    Wrong(
        "no endpoints file",
        "endpoints_file: none.yaml",
        "none.yaml is not a file",
        "laar init",
        line=1,
    ),
    Wrong(
        "faulty endpoints file",
        "endpoints_file: faulty.yaml",
        "endpoints[0].modle",
        "did you mean `model`?",
        file="faulty.yaml",
        line=3,
    ),
    Wrong("no cluster", "kubernetes: [{pool: p}]", "kubernetes[0]: ", "kubectl proxy", line=1),
    # files
    Wrong(
        "no artifact",
        "accuracy:\n  capability: no.json",
        "no.json is not a file",
        Fault.ARTIFACT.fix,
        line=2,
    ),
    Wrong("old artifact", "accuracy:\n  capability: old.json", "artifact_schema 99", line=2),
    Wrong("viewers", "decisions:\n  viewers_token_file: none", Fault.TOKENS.fix, line=2),
    Wrong("token", "accuracy:\n  outcomes_token_file: short.token", Fault.TOKENS.fix, line=2),
    Wrong("certificate", "listen:\n  tls: {cert_file: a, key_file: b}", Fault.TLS.fix, line=2),
    Wrong(
        "not PEM",
        "listen:\n  tls: {cert_file: not.pem, key_file: not.pem}",
        "not a usable",
        line=2,
    ),
    Wrong("half TLS", "listen:\n  tls: {cert_file: not.pem}", "belong together", line=2),
    Wrong("EDS", "envoy:\n  eds_file: file/run/e.json", "file", Fault.EDS.fix, line=2),
    Wrong("log", "decisions:\n  log: no/d.jsonl", Fault.DECISION_LOG.fix, line=2),
    Wrong("snapshot", "share:\n  snapshot_file: no/s", Fault.SNAPSHOT.fix, line=2),
    Wrong("directory", "share:\n  snapshot_file: .", "is a directory; name a file", line=2),
    # ports
    Wrong("taken", "listen:\n  admin: 127.0.0.1:TAKEN", "listen.admin", "choose another", line=2),
    Wrong(
        "not ours", "listen:\n  health: 192.0.2.1:9003", "192.0.2.1:9003", "this machine's", line=2
    ),
    Wrong(
        "the same twice",
        "listen: {ext_proc: '127.0.0.1:FREE', health: '127.0.0.1:FREE'}",
        "listen.health: can't listen on 127.0.0.1:",
        line=1,
    ),
]


REFUSED = [case for case in WRONG if case.name not in ("EDS", "log", "snapshot", "directory")]


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def written(tmp_path: Path, taken: int) -> Callable[[Wrong], Path]:
    def write(case: Wrong) -> Path:
        for name, content in FILES.items():
            (tmp_path / name).write_text(content)
        free = free_ports(4)
        text = case.text.replace("TAKEN", str(taken)).replace("FREE", str(free.pop()))
        if case.endpoints and "endpoints" not in text and "kubernetes" not in text:
            text += "\nendpoints: [{address: '127.0.0.1:8000', model: m}]\n"
        if "listen" not in text and case.endpoints:
            text += _listen(free)
        (tmp_path / "laar.yaml").write_text(text)
        return tmp_path / ("none.yaml" if case.file == "none.yaml" else "laar.yaml")

    return write


def _listen(ports: list[int]) -> str:
    names = ("ext_proc", "health", "admin")
    given = {n: f"127.0.0.1:{p}" for n, p in zip(names, ports, strict=False)}
    return f"\nlisten: {given}\n"


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.name)
def test_each_error_is_reported_with_file_line_key_and_fix(
    case: Wrong, written: Callable[[Wrong], Path], tmp_path: Path
) -> None:
    path = written(case)
    done = CliRunner().invoke(app, ["check", "-c", str(path)])
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    said = done.stderr.replace(f"{tmp_path}/", "")
    line = r"\d+" if case.line is None else str(case.line)
    where = (
        rf"{re.escape(case.file)}(:{line})?: " if case.line is None else rf"{case.file}:{line}: "
    )
    faults = [one for one in said.splitlines() if re.match(f"(laar: )?{where}", one)]
    assert any(all(text in fault for text in case.says) for fault in faults), said


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_laar_serve_rejects_the_same_settings(
    case: Wrong, written: Callable[[Wrong], Path]
) -> None:
    """So `check` is not stricter than startup. Paths that can't be written do not stop a picker."""

    async def start() -> None:
        loaded = load(path)
        with loaded.located():
            await Runner(loaded).run()

    path = written(case)
    with pytest.raises(SettingError):
        asyncio.run(asyncio.wait_for(start(), 20))


def test_a_directory_that_this_user_may_not_write_to_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {
        "share": {"snapshot_file": "s"},
        "endpoints": [{"address": "127.0.0.1:8000", "model": "m"}],
    }
    (tmp_path / "laar.yaml").write_text(yaml.safe_dump(made) + _listen(free_ports(3)))
    loaded = load(tmp_path / "laar.yaml")
    monkeypatch.setattr(os, "access", lambda path, *_: path != tmp_path)  # root could write there
    (snapshot,) = faults(loaded, ports=False)
    assert f"share.snapshot_file: {tmp_path}/s can't be written" in snapshot


def test_all_errors_are_printed_together(tmp_path: Path) -> None:
    made = {
        "endpoints_file": "none.yaml",
        "decisions": {"viewers_token_file": "none"},
        "accuracy": {"outcomes_token_file": "none"},
    }
    (tmp_path / "laar.yaml").write_text(yaml.safe_dump(made) + _listen(free_ports(3)))
    done = CliRunner().invoke(app, ["check", "-c", str(tmp_path / "laar.yaml")])
    assert done.exit_code == 2
    for key in ("endpoints_file", "viewers_token_file", "outcomes_token_file"):
        assert sum(f"{key}:" in line for line in done.stderr.splitlines()) == 1, done.stderr


IGNORED = {
    "flow: {patience: 7}": "flow.patience: has no effect without flow.enabled",
    "routing: {mode: shadow, enforce_share: 0.5}": "has no effect without routing.mode: enforce",
    "routing: {aliases: {fast: [mm]}}": "unknown model `mm`; known: m; the alias omits it",
    "share: {url: 'redis://s', ca_file: not.pem}": "has no effect without share.url: rediss://",
    "share: {password_file: short.token}": "has no effect without share.url;",
    "share: {url: 'redis://s', snapshot_file: s}": "has no effect without share.url: null",
    "listen: {admin: '0.0.0.0:FREE'}": "are refused without decisions.viewers_token_file",
}


@pytest.mark.parametrize(("text", "says"), IGNORED.items())
def test_an_ignored_setting_is_a_warning(tmp_path: Path, text: str, says: str) -> None:
    for name, content in FILES.items():
        (tmp_path / name).write_text(content.replace("model: m", "model: other"))
    ports = free_ports(4)
    text = text.replace("FREE", str(ports.pop()))
    made = f"endpoints: [{{address: '127.0.0.1:8000', model: m}}]\n{text}\n"
    made += "" if "listen" in text else _listen(ports)
    (tmp_path / "laar.yaml").write_text(made)
    done = CliRunner().invoke(app, ["check", "--no-ports", "-c", str(tmp_path / "laar.yaml")])
    assert done.exit_code == 0, done.stderr
    warning = next(line for line in done.stderr.splitlines() if says in line)
    assert "warning: " in warning
    assert re.search(r"laar\.yaml:\d+: ", warning)


def test_sharing_without_its_package_is_reported_as_an_error_in_that_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("redis.exceptions", "redis"):  # another test may have imported it
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "laar.yaml").write_text(
        "endpoints: [{address: '127.0.0.1:1', model: m}]\nshare:\n  url: redis://127.0.0.1:1/0\n"
    )
    done = CliRunner().invoke(app, ["check", "--no-ports", "-c", str(tmp_path / "laar.yaml")])
    assert done.exit_code == 2
    assert "laar.yaml:3: share.url: needs the Redis client; " in done.stderr
    assert "in a clone of laar: pip install '.[share]'" in done.stderr


def test_settings_written_by_laar_init_have_no_errors_or_warnings(tmp_path: Path) -> None:
    (tmp_path / "laar.yaml").write_text(
        "endpoints_file: endpoints.yaml\nenvoy: {eds_file: run/e.json}" + _listen(free_ports(3))
    )
    (tmp_path / "endpoints.yaml").write_text(FILES["endpoints.yaml"])
    done = CliRunner().invoke(app, ["check", "-c", str(tmp_path / "laar.yaml")])
    assert (done.exit_code, done.stderr) == (0, "")
    assert not (tmp_path / "run").exists()
    assert yaml.safe_load(done.stdout)["endpoints_file"].endswith("endpoints.yaml")


@pytest.mark.usefixtures("envoy_binary")
def test_with_envoy_its_file_and_its_endpoints_are_checked(tmp_path: Path) -> None:
    def check() -> tuple[int, str]:
        path = tmp_path / "laar.yaml"
        done = CliRunner().invoke(app, ["check", "--with-envoy", "-c", str(path)])
        return done.exit_code, done.stderr

    ports = free_ports(3)
    made = "endpoints_file: endpoints.yaml\n" + _listen(ports)
    (tmp_path / "endpoints.yaml").write_text(FILES["endpoints.yaml"])
    (tmp_path / "laar.yaml").write_text(made)
    assert check()[0] == 2
    assert "envoy.eds_file: --with-envoy needs it" in check()[1]
    (tmp_path / "laar.yaml").write_text(made + "envoy: {eds_file: run/e.json}\n")
    assert check() == (0, "")
    done = CliRunner().invoke(
        app,
        [
            *("envoy", "--shape", "sidecar", "--listen-port", "0", "--admin-port", "0"),
            *("--ready-port", "0", "--eds-file", str(tmp_path / "run" / "e.json")),
            *("--picker", "127.0.0.1:1"),
        ],
    )
    (tmp_path / "envoy.yaml").write_text(done.stdout)
    status, said = check()
    assert status == 2
    assert f"`address: 127.0.0.1, port_value: {ports[0]}` (listen.ext_proc" in said
    assert "or delete the file: laar then renders its own" in said
    (tmp_path / "envoy.yaml").unlink()
    assert check() == (0, ""), "the advice removes the fault"
    fitting = done.stdout.replace("port_value: 1\n", f"port_value: {ports[0]}\n")
    (tmp_path / "envoy.yaml").write_text(fitting.replace("static_resources", "statics"))
    status, said = check()
    assert status == 2
    assert "Envoy refuses the bootstrap" in said


@pytest.mark.usefixtures("envoy_binary")
@pytest.mark.parametrize(
    "text",
    [
        "static_resources: [7]",
        "static_resources: {clusters: {path_config_source: {path: 7}}}",
        "node: {id: 2026-01-01, metadata: {1: a}}",
    ],
)
def test_an_envoy_yaml_of_another_form_is_an_error(tmp_path: Path, text: str) -> None:
    for made in (False, True):  # the endpoints file
        (tmp_path / "laar.yaml").write_text(
            "endpoints: [{address: '127.0.0.1:1', model: m}]\nenvoy: {eds_file: run/e.json}\n"
        )
        (tmp_path / "envoy.yaml").write_text(f"admin: {{profile_path: 5}}\n{text}\n")
        if made:
            (tmp_path / "run").mkdir()
            (tmp_path / "run" / "e.json").write_text("{}")
        done = CliRunner().invoke(
            app, ["check", "--with-envoy", "--no-ports", "-c", str(tmp_path / "laar.yaml")]
        )
        assert done.exit_code == 2, done.exception
        assert "envoy" in done.stderr.lower()


SHIPPED = sorted((Path(__file__).parents[2] / "deploy/overlays").glob("*/laar.yaml"))


@pytest.mark.parametrize("shipped", SHIPPED, ids=lambda path: path.parent.name)
def test_settings_for_a_cluster_can_be_checked_outside_the_cluster(
    shipped: Path, tmp_path: Path
) -> None:
    got = CliRunner().invoke(app, ["check", "--elsewhere", "-c", str(shipped)])
    assert got.exit_code == 0, got.output
    assert "kubernetes:" in got.stdout
    text = shipped.read_text()
    wrong_one = tmp_path / "laar.yaml"
    wrong_one.write_text(text.replace("kubernetes:", "kubernetees:", 1))
    got = CliRunner().invoke(app, ["check", "--elsewhere", "-c", str(wrong_one)])
    assert got.exit_code == 2
    assert "did you mean `kubernetes`?" in got.output
    assert text != wrong_one.read_text()


@pytest.mark.parametrize(("other", "said"), [("a", "any endpoint"), ("b", "within each model")])
def test_it_prints_what_envoy_does_without_a_picker(tmp_path: Path, other: str, said: str) -> None:
    path = tmp_path / "laar.yaml"
    listed = [{"address": f"127.0.0.1:{n}", "models": [m]} for n, m in ((1, "a"), (2, other))]
    path.write_text(yaml.safe_dump({"endpoints": listed, "envoy": {"eds_file": "run/e.json"}}))
    got = CliRunner().invoke(app, ["check", "--no-ports", "-c", str(path)])
    first, _, rest = got.stdout.partition("\n")
    assert said in first
    assert yaml.safe_load(got.stdout) == yaml.safe_load(rest)


def test_errors_and_warnings_can_be_printed_as_json(tmp_path: Path) -> None:
    path = tmp_path / "laar.yaml"
    endpoints = "endpoints: [{address: '127.0.0.1:1', models: [m]}]\n"

    def check() -> tuple[int, dict[str, list[str]]]:
        done = CliRunner().invoke(app, ["check", "--json", "--no-ports", "-c", str(path)])
        return done.exit_code, json.loads(done.stdout)

    path.write_text(endpoints)
    assert check() == (0, {"faults": [], "warnings": []})
    path.write_text(endpoints + "routing: {polcy: laar}\nflow: {enabld: true}\n")
    status, found = check()
    assert status == 2
    assert len(found["faults"]) == 2
    assert "polcy" in found["faults"][0]
    assert "laar.yaml:2" in found["faults"][0]
    path.write_text(endpoints + f"decisions: {{log: {tmp_path}/none/log}}\n")
    status, found = check()
    assert status == 2
    assert "decisions.log" in found["faults"][0]
