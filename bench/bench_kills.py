"""Kill the picker of `laar serve --with-envoy` repeatedly under load, and do without any picker.

The engines serve four models, and answer 404 to any other; half of the requests name theirs in the
path. An open loop sends requests through the Envoy that laar runs, whether or not earlier ones have
ended, so every request lost to a kill is counted. The next kill follows `--pause` seconds after the
picker decides again. "Undecided" is the time from a kill to the end of the last request that Envoy
forwarded without a decision from the picker.

With `--alone`, Envoy then gets that many requests in each shape for each way of having no picker:
it was killed, stopped or hangs, or decides in shadow mode, for all requests or for 70 % of them.

    python -m bench kills
    python -m bench kills --kills 0 --alone 500
    python -m bench kills --kills 10 --rate 20 --json kills.json

Exit status: 0 if every target was met, 3 if one was missed.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import psutil
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from bench.chaos.load import percentile
from bench.options import output_file, parser_for, positive
from laar.envoy.options import Shape
from laar.envoy.process import EnvoyProcess
from laar_lab.live.processes import LaarProcess, free_ports, wait_for

UNDECIDED_S = 2.0
PATIENCE_S = 30.0
STEADY = 5
"""Consecutive decided requests after which the picker is considered back."""
MISSED = 3
MODELS = ("alpha", "org/beta", "gamma:8b", "delta")
ENGINES = (*MODELS, *MODELS[:2])
"""The model of each engine."""
WAYS: dict[str, dict[str, object]] = {
    "SIGKILL": {},
    "SIGTERM": {},
    "SIGSTOP": {},
    "shadow": {"mode": "shadow"},
    "share .3": {"enforce_share": 0.3},
}
SHAPES: tuple[Shape, ...] = ("sidecar", "standalone", "gateway")


@dataclass(slots=True)
class Run:
    """The results seen by the clients."""

    kills: int = 0
    failed: list[str] = field(default_factory=list)
    decided: list[tuple[float, float]] = field(default_factory=list)
    undecided: list[tuple[float, float]] = field(default_factory=list)
    undecided_s: list[float] = field(default_factory=list)
    in_a_row: int = 0

    def ended(self, began_s: float, *, decided: bool) -> None:
        """Count a correct answer."""
        (self.decided if decided else self.undecided).append((began_s, time.monotonic()))
        self.in_a_row = self.in_a_row + 1 if decided else 0


async def measure(directory: Path, *, kills: int, rate: float, pause_s: float, seed: int) -> Run:
    """Kill the picker `kills` times under a load of `rate` requests a second."""
    run, rng, over = Run(), random.Random(seed), asyncio.Event()
    async with _engines() as engines:
        listen, *ports = free_ports(5)
        command = _settings(directory, engines, listen, ports)
        async with LaarProcess(command, directory / "laar.log") as process:
            url = f"http://127.0.0.1:{listen}"
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(connector=connector) as http:
                load = asyncio.create_task(_load(http, url, run, rng, rate, over))
                try:
                    await _back(run, process)
                    for kept in (run.failed, run.decided, run.undecided):
                        kept.clear()  # discard what was seen during startup
                    for _ in range(kills):
                        await asyncio.sleep(pause_s)
                        _serving(process, ports[0]).send_signal(signal.SIGKILL)
                        struck_s, run.in_a_row = time.monotonic(), 0
                        run.kills += 1
                        await asyncio.sleep(0.2)
                        await _back(run, process)
                        ends = [end for began, end in run.undecided if end > struck_s]
                        run.undecided_s.append(max(ends, default=struck_s) - struck_s)
                finally:
                    over.set()
                    await load
    return run


async def alone(directory: Path, way: str, shape: Shape, *, requests: int, seed: int) -> Run:
    """Send requests, an eighth of them before the picker is gone."""
    run, rng = Run(), random.Random(seed)
    async with _engines() as engines, AsyncExitStack() as stack:
        listen, *ports = free_ports(5)
        _settings(directory, engines, listen, ports, shape=shape, routing=WAYS[way])
        command = ("serve", "-c", str(directory / "laar.yaml"))
        process = await stack.enter_async_context(LaarProcess(command, directory / "laar.log"))
        await wait_for(f"http://127.0.0.1:{ports[2]}/readyz", process)
        url = f"http://127.0.0.1:{listen}"
        bootstrap = yaml.safe_load((directory / "envoy.yaml").read_text())
        await stack.enter_async_context(EnvoyProcess(bootstrap, directory))
        connector = aiohttp.TCPConnector(limit=0)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        async with asyncio.TaskGroup() as group:
            for number in range(requests):
                if number == requests // 8 and way in signal.Signals.__members__:
                    os.kill(process.pid, signal.Signals[way])
                await asyncio.sleep(rng.expovariate(100.0))
                group.create_task(_ask(http, url, run, rng))
    return run


@asynccontextmanager
async def _engines() -> AsyncIterator[dict[str, str]]:
    """Run the engines; yield the model at each address."""
    async with AsyncExitStack() as stack:
        servers = [(await stack.enter_async_context(TestServer(_engine(m))), m) for m in ENGINES]
        yield {f"127.0.0.1:{server.port}": model for server, model in servers}


def _engine(model: str) -> web.Application:
    async def models(_request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": model, "object": "model"}]})

    async def complete(request: web.Request) -> web.Response:
        asked = request.match_info.get("model") or (await request.json())["model"]
        if asked != model:
            return web.json_response({"error": {"message": f"{asked} is not here"}}, status=404)
        choice = {"index": 0, "text": "yes", "finish_reason": "stop"}
        answer = {"id": "a", "object": "text_completion", "model": model, "choices": [choice]}
        return web.json_response(answer)

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/completions", complete)
    app.router.add_post("/openai/deployments/{model:.+}/completions", complete)
    return app


def _settings(
    directory: Path,
    engines: Mapping[str, str],
    listen: int,
    ports: Sequence[int],
    *,
    shape: Shape = "sidecar",
    routing: Mapping[str, object] | None = None,
) -> tuple[str, ...]:
    from laar.envoy.bootstrap import render, to_yaml
    from laar.envoy.options import BootstrapOptions

    eds = directory / "run" / "endpoints.json"
    options = BootstrapOptions(
        picker=f"127.0.0.1:{ports[0]}",
        listen_host="127.0.0.1",
        listen_port=listen,
        ready_port=0,
        admin_port=0,
        eds_path=str(eds),
    )
    (directory / "envoy.yaml").write_text(to_yaml(render(shape, options)))
    names = zip(("ext_proc", "health", "admin"), ports, strict=False)
    document = {
        "endpoints": [{"address": at, "models": [model]} for at, model in engines.items()],
        "listen": {name: f"127.0.0.1:{port}" for name, port in names},
        "envoy": {"eds_file": str(eds)},
        "routing": dict(routing or {}),
    }
    config = directory / "laar.yaml"
    config.write_text(yaml.safe_dump(document))
    return ("serve", "--with-envoy", "-c", str(config))


def _serving(process: LaarProcess, port: int) -> psutil.Process:
    """Return the process that listens on the ext_proc port."""
    for child in psutil.Process(process.pid).children(recursive=True):
        if any(c.status == "LISTEN" and c.laddr.port == port for c in child.net_connections()):
            return child
    raise RuntimeError(f"no process listens on port {port}")


async def _load(
    http: aiohttp.ClientSession,
    url: str,
    run: Run,
    rng: random.Random,
    rate: float,
    over: asyncio.Event,
) -> None:
    async with asyncio.TaskGroup() as group:
        due = time.monotonic()
        while not over.is_set():
            due += rng.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            group.create_task(_ask(http, url, run, rng))


async def _ask(http: aiohttp.ClientSession, url: str, run: Run, rng: random.Random) -> None:
    began_s, model = time.monotonic(), rng.choice(MODELS)
    body, path = {"prompt": "Is it so?"}, f"/openai/deployments/{model}/completions"
    if rng.random() < 0.5:
        body, path = {**body, "model": model}, "/v1/completions"
    limit = aiohttp.ClientTimeout(total=PATIENCE_S)
    try:
        async with http.post(url + path, json=body, timeout=limit) as answer:
            text = await answer.text()
            if answer.status == 200 and '"yes"' in text:
                run.ended(began_s, decided="x-laar-decision-id" in answer.headers)
            else:
                run.failed.append(f"{answer.status} {text[:80]}")
    except (aiohttp.ClientError, TimeoutError) as error:
        run.failed.append(repr(error)[:80])


async def _back(run: Run, process: LaarProcess) -> None:
    async with asyncio.timeout(60.0):
        while run.in_a_row < STEADY:
            process.check_alive()
            await asyncio.sleep(0.02)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; return 3 if a target was missed."""
    parser = parser_for("kills", __doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--rate", type=positive, default=50.0, help="requests a second")
    parser.add_argument("--pause", type=float, default=3.0, help="seconds before the next kill")
    parser.add_argument("--alone", type=int, default=0, help="requests without a picker")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=output_file, help="write all figures")
    options = parser.parse_args(argv)
    rows = [_killed(options)] if options.kills else []
    for shape in SHAPES if options.alone else ():
        for way in WAYS:
            with tempfile.TemporaryDirectory(prefix="laar-kills-") as directory:
                run = asyncio.run(
                    alone(Path(directory), way, shape, requests=options.alone, seed=options.seed)
                )
            rows.append({"way": way, "shape": shape, **_figures(run)})
            print(orjson.dumps(rows[-1]).decode(), flush=True)
    if options.json:
        options.json.write_bytes(orjson.dumps(rows, option=orjson.OPT_INDENT_2))
    met = all(not row["failed"] and row.get("undecided_max_s", 0.0) <= UNDECIDED_S for row in rows)
    print(f"target: 0 failed, undecided <= {UNDECIDED_S:g} s: {'met' if met else 'MISSED'}")
    return 0 if met else MISSED


def _killed(options: Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="laar-kills-") as directory:
        run = asyncio.run(
            measure(
                Path(directory),
                kills=options.kills,
                rate=options.rate,
                pause_s=options.pause,
                seed=options.seed,
            )
        )
    result = {
        "kills": run.kills,
        **_figures(run),
        "undecided_p50_s": round(percentile(run.undecided_s, 0.5), 2),
        "undecided_max_s": round(max(run.undecided_s), 2),
    }
    print(orjson.dumps(result).decode(), flush=True)
    return result


def _figures(run: Run) -> dict[str, Any]:
    return {
        "requests": len(run.failed) + len(run.decided) + len(run.undecided),
        "failed": len(run.failed),
        "undecided": len(run.undecided),
        "examples": sorted(set(run.failed))[:3],
    }


if __name__ == "__main__":
    sys.exit(main())
