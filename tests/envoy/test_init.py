"""`laar init` and `laar serve --with-envoy` lead from running engines to an answer."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack
from functools import cache
from pathlib import Path

import httpx
import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from typer.testing import CliRunner

from laar.cli import app
from laar.cli.beside import bootstrap_beside
from laar.envoy.bootstrap import render, to_yaml
from laar.envoy.options import BootstrapOptions
from laar.errors import SettingError
from laar.settings import load
from laar_lab.live.processes import laar_process, wait_for
from laar_lab.sim.endpoint import EndpointSettings, SimulatedEndpoint
from support.commands import run, run_in_thread
from support.waiting import eventually, free_ports


async def test_two_commands_are_enough_to_get_an_answer_from_two_engines(tmp_path: Path) -> None:
    one, nothing, listen, ready, *picker = free_ports(7)
    command = ("sim-endpoint", "--port", str(one), "--served-name", "llama", "--time-scale", "0.01")
    process = laar_process(command, tmp_path / "llama.log")
    other = SimulatedEndpoint(EndpointSettings(model="phi", served_names=["phi"], time_scale=0.01))
    async with process, AsyncExitStack() as stack:
        await other.start()
        stack.push_async_callback(other.stop)
        two = int(other.url.rpartition(":")[2])
        await wait_for(f"http://127.0.0.1:{one}/health", process)
        directory = tmp_path / "made"
        ran = await run_in_thread(
            *("init", "-e", f"http://127.0.0.1:{one}", "-e", f"127.0.0.1:{two}"),
            *("-e", f"127.0.0.1:{nothing}", "-d", str(directory)),
        )
        assert ran.status == 1, ran.text
        assert "no answer at /v1/models" in ran.text
        assert "Envoy fails open within each model" in ran.text
        left_out = f"1 of 3 engines left out: complete {directory / 'endpoints.yaml'}"
        assert ran.text.splitlines()[-1] == left_out
        written = (directory / "endpoints.yaml").read_text()
        heading, entry = written.split(f"# 127.0.0.1:{nothing} is left out.")
        completed = heading + entry.partition("\n")[2].replace("# ", "").replace("#", "")
        completed = completed.replace("models: []", "models: [other]")
        last = yaml.safe_load(completed)["endpoints"][-1]
        assert last == {"address": f"127.0.0.1:{nothing}", "models": ["other"]}
        said = (tmp_path / "llama.log").read_text()
        assert said == f"http://127.0.0.1:{one} serves llama; Ctrl-C stops it\n"
        endpoints = yaml.safe_load((directory / "endpoints.yaml").read_text())["endpoints"]
        assert [e["models"] for e in endpoints] == [["llama"], ["phi"]]
        # The default ports may be in use where tests run.
        settings = yaml.safe_load((directory / "laar.yaml").read_text())
        names = ("ext_proc", "health", "admin")
        settings["listen"] = {
            name: f"127.0.0.1:{port}" for name, port in zip(names, picker, strict=True)
        }
        settings["shutdown"] = {"drain_s": 0.0, "grace_s": 2.0}
        (directory / "laar.yaml").write_text(yaml.safe_dump(settings))
        text = to_yaml(dict(bootstrap_beside(load(directory / "laar.yaml"), directory / "-")))
        assert text.count("address: 0.0.0.0") == 0  # no port is open to other machines
        for old, new in ((8080, listen), (19001, ready), (19000, 0)):
            text = text.replace(f"port_value: {old}", f"port_value: {new}")
        (directory / "envoy.yaml").write_text(text)

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
                    return answer.status_code == 200 and answer.headers.get("x-laar-model") == "phi"

                await eventually(answered, timeout_s=40, what="an answer through Envoy")
            serving.send_signal(signal.SIGTERM)
            async with asyncio.timeout(60):
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
        (("-e", "https://127.0.0.1"), "without a name needs `sni`"),
        (("-e", "engine"), "has no port"),
        (("-e", "http://[::1"), "--endpoint http://[::1: "),
        (("-e", "http://127.0.0.1:1/openai/v1?x=1"), "must not have a query"),
        (("-e", "127.0.0.1:1"), "start the engines"),
    ],
)
def test_invalid_arguments_are_errors_that_suggest_a_fix(
    tmp_path: Path, arguments: tuple[str, ...], remedy: str
) -> None:
    ran = run("init", *arguments, "-d", tmp_path)
    assert ran.status == 2
    assert remedy in ran.text
    assert not (tmp_path / "laar.yaml").exists()


async def test_an_engine_that_requires_a_key_is_examined_with_one(tmp_path: Path) -> None:
    async def models(request: web.Request) -> web.Response:
        if request.headers.get("authorization") != "Bearer secret":
            return web.Response(status=401)
        return web.json_response(
            {"data": [{"id": "m", "root": "m"}, {"id": "lora", "root": "/l", "parent": "m"}]}
        )

    engine = web.Application()
    engine.router.add_get("/v1/models", models)
    place = tmp_path / "my fleet"
    async with TestServer(engine) as server:
        asked = ("init", "-e", f"127.0.0.1:{server.port}", "-d", place)
        ran = await run_in_thread(*asked)
        assert ran.status == 2
        assert "--key-env" in ran.text
        ran = await run_in_thread(*asked, "--key-env", "ENGINE_KEY", ENGINE_KEY="secret")
    assert ran.status == 0, ran.text
    assert f"cd '{place}' && laar serve" in ran.text
    # The file lists the adapter, as the picker can't read it without the key.
    assert yaml.safe_load((place / "endpoints.yaml").read_text())["endpoints"][0]["models"] == [
        "m",
        "lora",
    ]
    for written in place.iterdir():
        assert written.is_dir() or "secret" not in written.read_text()


def test_files_are_not_overwritten_without_force(tmp_path: Path) -> None:
    (tmp_path / "laar.yaml").write_text("mine")
    ran = run("init", "-e", "127.0.0.1:1", "-d", tmp_path)
    assert ran.status == 2
    assert "--force" in ran.text
    assert (tmp_path / "laar.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    ("listens", "dials"),
    [
        ("0.0.0.0:9102", ("127.0.0.1", 9102)),
        ("[::]:9102", ("::1", 9102)),
        ("127.0.0.1:9102", ("127.0.0.1", 9102)),
    ],
)
def test_a_pickers_envoy_reaches_it_over_loopback(
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


def test_envoy_for_a_picker_with_tls_requires_a_bootstrap_file(tmp_path: Path) -> None:
    config = tmp_path / "laar.yaml"
    config.write_text(
        "endpoints: [{address: '127.0.0.1:1', model: m}]\n"
        "listen:\n  tls: {self_signed: true}\nenvoy: {eds_file: run/e.json}\n"
    )
    done = CliRunner().invoke(app, ["check", "--no-ports", "--with-envoy", "-c", str(config)])
    assert done.exit_code == 2
    assert "laar.yaml:3: listen.tls: " in done.output
    with pytest.raises(SettingError, match=r"remove listen.tls, or write an envoy.yaml"):
        bootstrap_beside(load(config), config)
    eds_path = str(tmp_path / "run" / "e.json")
    own = render("sidecar", BootstrapOptions(eds_path=eds_path, picker_ca_path="/ca.pem"))
    (tmp_path / "envoy.yaml").write_text(to_yaml(own))
    assert bootstrap_beside(load(config), config) == own


@cache
def sidecar() -> str:
    return to_yaml(render("sidecar", BootstrapOptions(eds_path="/the/directory/run/e.json")))
