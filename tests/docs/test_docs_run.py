"""Shell blocks of the pages are run against simulated endpoints and a real Envoy.

The endpoints, settings and files are those of the pages; only addresses and folders are replaced. A
block is not run if it starts a server, or needs a cluster, an engine or an hour.
"""

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from docs_pages import DOCS, commands, fences
from typer.testing import CliRunner

from laar.cli import app
from laar.envoy.bootstrap import render
from laar.envoy.options import BootstrapOptions
from laar.envoy.process import EnvoyProcess
from laar.server.runner import Runner
from laar.settings import load
from laar_lab.sim.endpoint import EndpointSettings, SimulatedEndpoint
from support import free_port

pytestmark = pytest.mark.envoy

GUIDE, RAG = DOCS / "guides/vllm.md", DOCS / "guides/rag.md"
RUN = {("laar", name) for name in ("check", "doctor", "envoy", "explain", "fit", "measure")}
IN_LAB = [["laar", "lab", "list"]]
DEADLINE_S = 60.0


def runnable(fence):
    """Return whether every command of a block can be run here."""
    return all(
        words[0] == "curl" or tuple(words[:2]) in RUN or words[:3] in IN_LAB
        for words in commands(fence.text)
    )


def blocks():
    """Return the blocks to run, without repeats of one that several pages share with its files."""
    seen = {}
    for page in sorted(DOCS.rglob("*.md")):
        if page.name == "tutorial.md":  # has its own test
            continue
        files = {f.title: f.text for f in fences(page) if f.title}
        for fence in fences(page):
            if fence.language == "sh" and runnable(fence):
                needs = tuple(text for name, text in files.items() if name in fence.text)
                seen.setdefault((fence.text, needs), fence)
    return list(seen.values())


BLOCKS = blocks()


@dataclass
class Site:
    """The real addresses and directories of what the pages name.

    The picker runs in `running`. Commands run in `directory`, where pages replace files.
    """

    directory: Path
    running: Path
    replaced: dict[str, str]
    do: Callable[[Coroutine], Any]
    """Run a coroutine to its end on the loop of the endpoints."""

    def here(self, text):
        """Return a page's text with the real addresses."""
        for shown, real in self.replaced.items():
            text = text.replace(shown, real)
        return text

    def write_files(self, directory, page=GUIDE):
        """Write the files that a page shows, over the guide's files."""
        for fence in (*fences(GUIDE), *fences(page)):
            if fence.title:
                (directory / fence.title).write_text(self.here(fence.text))


@pytest.fixture(scope="module")
def site(tmp_path_factory, envoy_binary):
    """Run the endpoints, picker and Envoy of the vLLM guide in an event loop of their own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    stack = AsyncExitStack()

    def wait_for(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(DEADLINE_S)

    folders = (tmp_path_factory.mktemp(name) for name in ("site", "running"))
    site = Site(*folders, {}, wait_for)

    try:
        wait_for(start(site, stack))
        yield site
    finally:
        wait_for(stack.aclose())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def start(site, stack):
    """Start the processes of the guide."""
    endpoints = yaml.safe_load(next(f.text for f in fences(GUIDE) if f.title == "endpoints.yaml"))
    for each in endpoints["endpoints"]:
        model = each["models"][0]
        endpoint = SimulatedEndpoint(
            EndpointSettings(
                model=model, served_names=each["models"], fleet_model=model, time_scale=0.001
            )
        )
        await endpoint.start()
        stack.push_async_callback(endpoint.stop)
        site.replaced[each["address"]] = endpoint.url.removeprefix("http://")
    listen = {name: f"127.0.0.1:{free_port()}" for name in ("ext_proc", "health", "admin")}
    site.replaced["127.0.0.1:9090"] = listen["admin"]
    site.replaced["/run/laar/envoy"] = str(site.running / "envoy")
    (site.running / "envoy").mkdir()
    site.write_files(site.running)
    settings = yaml.safe_load((site.running / "laar.yaml").read_text())
    settings |= yaml.safe_load(next(f.text for f in fences(RAG) if f.language == "yaml"))
    settings |= {"listen": listen, "shutdown": {"drain_s": 0.0, "grace_s": 1.0}}
    # Failures due to a busy machine must not exclude an endpoint.
    patch = stack.enter_context(pytest.MonkeyPatch.context())
    patch.setattr("laar.core.filters.MAX_FAILURES", 1000)
    (site.running / "laar.yaml").write_text(yaml.safe_dump(settings))
    runner = Runner(load(site.running / "laar.yaml").settings)
    started = asyncio.Event()
    running = asyncio.create_task(runner.run(started=started))
    stack.push_async_callback(asyncio.wait_for, running, DEADLINE_S)
    stack.callback(runner.stop)
    await asyncio.wait_for(started.wait(), DEADLINE_S)
    options = BootstrapOptions(
        picker=listen["ext_proc"],
        listen_port=0,
        ready_port=0,
        admin_port=0,
        eds_path=str(site.running / "envoy/endpoints.json"),
    )
    bootstrap = render("standalone", options)
    envoy = await stack.enter_async_context(EnvoyProcess(bootstrap, site.running))
    site.replaced["http://localhost:8080"] = envoy.url()
    site.replaced["http://127.0.0.1:19000"] = envoy.admin_url


LAAR = """#!{python} -IS
import json, pathlib, socket, sys
with socket.socket(socket.AF_UNIX) as here:
    here.connect(str(pathlib.Path(__file__).with_name("socket")))
    with here.makefile("rwb") as lines:
        lines.write(json.dumps(sys.argv[1:]).encode() + b"\\n")
        lines.flush()
        status, out, err = json.loads(lines.readline())
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(status)
"""
"""The shell's command `laar`, which runs in the test's process: starting one takes a second."""
CURL = """#!/bin/sh
PATH=${PATH#*:} exec curl --fail-with-body "$@"
"""


async def run_for_shell(reader, writer):
    """Run one `laar` command at a time."""
    arguments = json.loads(await reader.readline())
    ran = await asyncio.to_thread(CliRunner(env={"NO_COLOR": "1"}).invoke, app, arguments)
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        traceback.print_exception(ran.exception)
    writer.write(json.dumps([ran.exit_code, ran.stdout, ran.stderr]).encode() + b"\n")
    await writer.drain()
    writer.close()


@pytest.fixture(scope="module")
def shell(site):
    """Run a shell text in the site's folder; curl fails if the server returns an error."""
    bin_folder = site.directory / "bin"
    bin_folder.mkdir()
    for name, script in (("laar", LAAR.replace("{python}", sys.executable)), ("curl", CURL)):
        (bin_folder / name).write_text(script)
        (bin_folder / name).chmod(0o755)
    server = site.do(asyncio.start_unix_server(run_for_shell, bin_folder / "socket"))

    def run(text):
        with contextlib.chdir(site.directory):  # as `laar` runs in this process
            return subprocess.run(
                ["bash", "-euo", "pipefail", "-c", text],
                env={**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"},
                capture_output=True,
                text=True,
                check=False,
                timeout=DEADLINE_S,
            )

    async def close():
        server.close()

    yield run
    site.do(close())


@pytest.mark.parametrize("page", list(dict.fromkeys(fence.page.name for fence in BLOCKS)))
def test_the_shell_blocks_of_a_page_work_as_described(site, shell, page):
    """Blocks run in the page's order, as one may read a file that an earlier one writes."""
    for fence in (fence for fence in BLOCKS if fence.page.name == page):
        site.write_files(site.directory, fence.page)
        text = site.here(fence.text)
        if "laar doctor" in text:  # as the guide's picker has other ports here
            text = text.replace("laar doctor", f"laar doctor --picker http://{admin(site)}")
            if "--envoy" not in text:
                text = text.rstrip() + f" --envoy {site.replaced['http://127.0.0.1:19000']}\n"
        if "--no-ports" not in text:  # another picker may run on this machine
            text = text.replace("laar check", "laar check --no-ports")
        ran = shell(text)
        assert ran.returncode == 0, f"{fence}: {text}\n{ran.stdout}\n{ran.stderr}"
        assert ran.stdout or ">" in text, fence


def test_the_quick_start_shows_the_actual_headers_and_columns(site, shell):
    page = (DOCS / "quick-start.md").read_text()
    site.write_files(site.directory)
    chat = '{"model": "auto", "messages": [{"role": "user", "content": "Hello"}]}'
    (site.directory / "request.json").write_text(chat)
    post = "curl -si http://localhost:8080/v1/chat/completions -H 'content-type: application/json'"
    answer = shell(site.here(f"{post} -d @request.json")).stdout
    table = shell(site.here("laar explain request.json --url http://127.0.0.1:9090")).stdout
    for text in (answer, table):
        assert text
    shown, sent = (
        set(re.findall("^(x-laar-[a-z-]+): ", text, re.MULTILINE)) for text in (page, answer)
    )
    assert shown == sent
    shown, printed = (
        re.split("  +", re.search("^ #  endpoint.*", text, re.MULTILINE)[0].strip())
        for text in (page, table)
    )
    assert printed[: len(shown)] == shown
    assert printed[len(shown) :] in ([], ["answers P", "slow s"])
    explained = " ".join(re.findall(r"^\| (`.*?) \|", page, re.MULTILINE))
    assert [name for name in shown[3:] if f"`{name}`" not in explained] == []


def admin(site):
    return site.replaced["127.0.0.1:9090"]
