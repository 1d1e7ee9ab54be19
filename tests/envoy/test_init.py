"""`laar init` and `laar serve --with-envoy`: from running engines to an answer through Envoy."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import httpx
import pytest
import yaml
from typer.testing import CliRunner

from laar.cli import app
from laar.cli.beside import bootstrap_beside
from laar.errors import SettingError
from laar.lab.live.processes import LaarProcess, wait_for
from laar.settings import load
from support.waiting import eventually, free_ports


async def _laar(*arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "laar.cli", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(60):
        output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_two_engines_to_an_answer_in_two_commands(tmp_path: Path) -> None:
    one, two, nothing, listen, ready, *picker = free_ports(8)
    engines = [
        LaarProcess(
            ("sim-endpoint", "--port", str(port), "--served-name", name, "--time-scale", "0.01"),
            tmp_path / f"{name}.log",
        )
        for port, name in ((one, "llama"), (two, "phi"))
    ]
    async with engines[0], engines[1]:
        for port, process in zip((one, two), engines, strict=True):
            await wait_for(f"http://127.0.0.1:{port}/health", process)
        directory = tmp_path / "made"
        status, text = await _laar(
            *("init", "-e", f"http://127.0.0.1:{one}", "-e", f"127.0.0.1:{two}"),
            *("-e", f"127.0.0.1:{nothing}", "-d", str(directory)),
        )
        assert status == 0, text
        assert "no answer at /v1/models" in text
        said = (tmp_path / "llama.log").read_text()
        assert said == f"http://127.0.0.1:{one} serves llama; Ctrl-C stops it\n"
        endpoints = yaml.safe_load((directory / "endpoints.yaml").read_text())["endpoints"]
        assert [e["models"] for e in endpoints] == [["llama"], ["phi"]]
        # Other ports than the defaults, since those may be in use where tests run.
        settings = yaml.safe_load((directory / "laar.yaml").read_text())
        names = ("ext_proc", "health", "admin")
        settings["listen"] = {
            name: f"127.0.0.1:{port}" for name, port in zip(names, picker, strict=True)
        }
        settings["shutdown"] = {"drain_s": 0.0, "grace_s": 2.0}
        (directory / "laar.yaml").write_text(yaml.safe_dump(settings))
        bootstrap = yaml.safe_load((directory / "envoy.yaml").read_text())
        text = (directory / "envoy.yaml").read_text()
        assert text.count("address: 0.0.0.0") == 0  # nothing of it is open to other machines
        for old, new in ((8080, listen), (19001, ready), (9002, picker[0])):
            text = text.replace(f"port_value: {old}", f"port_value: {new}")
        text = text.replace("port_value: 19000", "port_value: 0")
        (directory / "envoy.yaml").write_text(text)
        assert bootstrap["node"]["id"] == "laar-sidecar"

        serving = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "laar.cli", "serve", "--with-envoy"),
            cwd=directory,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{listen}") as http:

                async def answered() -> bool:
                    assert serving.returncode is None
                    try:
                        body = {"model": "phi", "messages": [{"role": "user", "content": "Hi"}]}
                        answer = await http.post("/v1/chat/completions", json=body)
                    except httpx.TransportError:
                        return False
                    return answer.status_code == 200 and answer.headers["x-laar-model"] == "phi"

                await eventually(answered, timeout_s=40, what="an answer through Envoy")
            serving.send_signal(signal.SIGTERM)
            async with asyncio.timeout(30):
                output, _ = await serving.communicate()
            assert serving.returncode == 0, output.decode()
            assert "Envoy listens on" in output.decode()
        finally:
            if serving.returncode is None:
                serving.kill()
                await serving.wait()


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (("-e", "https://engine.example"), "plain HTTP"),
        (("-e", "engine"), "has no port"),
        (("-e", "127.0.0.1:1"), "start the engines"),
    ],
)
async def test_what_cannot_be_is_an_error_with_a_remedy(
    tmp_path: Path, arguments: tuple[str, ...], remedy: str
) -> None:
    status, text = await _laar("init", *arguments, "-d", str(tmp_path))
    assert status == 2
    assert remedy in text
    assert not (tmp_path / "laar.yaml").exists()


async def test_files_are_not_overwritten_unasked(tmp_path: Path) -> None:
    (tmp_path / "laar.yaml").write_text("mine")
    status, text = await _laar("init", "-e", "127.0.0.1:1", "-d", str(tmp_path))
    assert status == 2
    assert "--force" in text
    assert (tmp_path / "laar.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    ("listens", "dials"),
    [
        ("0.0.0.0:9102", ("127.0.0.1", 9102)),
        ("[::]:9102", ("::1", 9102)),
        ("127.0.0.1:9102", ("127.0.0.1", 9102)),
    ],
)
def test_the_envoy_beside_a_picker_dials_it_by_loopback(
    tmp_path: Path, listens: str, dials: tuple[str, int]
) -> None:
    (tmp_path / "laar.yaml").write_text(
        f"endpoints: [{{address: '127.0.0.1:1', model: m}}]\nlisten: {{ext_proc: '{listens}'}}\n"
        "envoy: {eds_file: run/e.json}\n"
    )
    bootstrap = bootstrap_beside(load(tmp_path / "laar.yaml"), tmp_path / "laar.yaml")
    picker = next(c for c in bootstrap["static_resources"]["clusters"] if "picker" in c["name"])
    endpoint = picker["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
    address = endpoint["address"]["socket_address"]
    assert (address["address"], address["port_value"]) == dials


def test_the_envoy_beside_a_picker_with_tls_has_to_be_written(tmp_path: Path) -> None:
    config = tmp_path / "laar.yaml"
    config.write_text(
        "endpoints: [{address: '127.0.0.1:1', model: m}]\n"
        "listen:\n  tls: {self_signed: true}\nenvoy: {eds_file: run/e.json}\n"
    )
    done = CliRunner().invoke(app, ["check", "--no-ports", "--with-envoy", "-c", str(config)])
    assert done.exit_code == 2
    assert "laar.yaml:3: listen.tls: " in done.output
    with pytest.raises(SettingError, match=r"take listen.tls out, or write an envoy.yaml"):
        bootstrap_beside(load(config), config)
    (tmp_path / "envoy.yaml").write_text("static_resources: {}\n")
    assert bootstrap_beside(load(config), config) == {"static_resources": {}}
