"""Kill the picker of `laar serve --with-envoy` repeatedly under load.

An open loop sends requests through the Envoy that laar runs, whether or not earlier ones have
ended, so every request lost to a kill is counted. The next kill follows `--pause` seconds after the
picker decides again. "Undecided" is the time from a kill to the end of the last request that Envoy
forwarded without a decision from the picker.

    python -m bench kills
    python -m bench kills --kills 10 --rate 20 --json kills.json

Exit status: 0 if every target was met, 3 if one was missed.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import orjson
import psutil
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from bench.chaos.load import percentile
from bench.options import count, output_file, parser_for, positive
from laar_lab.live.processes import LaarProcess, free_ports

UNDECIDED_S = 2.0
PATIENCE_S = 30.0
STEADY = 5
"""Consecutive decided requests after which the picker is considered back."""
MISSED = 3


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
    async with TestServer(_engine()) as one, TestServer(_engine()) as two:
        listen, *ports = free_ports(5)
        command = _settings(directory, [f"127.0.0.1:{s.port}" for s in (one, two)], listen, ports)
        async with LaarProcess(command, directory / "laar.log") as process:
            url = f"http://127.0.0.1:{listen}/v1/completions"
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


def _engine() -> web.Application:
    async def models(_request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})

    async def complete(_request: web.Request) -> web.Response:
        choice = {"index": 0, "text": "yes", "finish_reason": "stop"}
        answer = {"id": "a", "object": "text_completion", "model": "m", "choices": [choice]}
        return web.json_response(answer)

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/completions", complete)
    return app


def _settings(
    directory: Path, engines: Sequence[str], listen: int, ports: Sequence[int]
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
    (directory / "envoy.yaml").write_text(to_yaml(render("sidecar", options)))
    names = zip(("ext_proc", "health", "admin"), ports, strict=False)
    document = {
        "endpoints": [{"address": address, "models": ["m"]} for address in engines],
        "listen": {name: f"127.0.0.1:{port}" for name, port in names},
        "envoy": {"eds_file": str(eds)},
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
            group.create_task(_ask(http, url, run))


async def _ask(http: aiohttp.ClientSession, url: str, run: Run) -> None:
    began_s = time.monotonic()
    body = {"model": "m", "prompt": "Is it so?"}
    limit = aiohttp.ClientTimeout(total=PATIENCE_S)
    try:
        async with http.post(url, json=body, timeout=limit) as answer:
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
    parser.add_argument("--kills", type=count, default=100)
    parser.add_argument("--rate", type=positive, default=50.0, help="requests a second")
    parser.add_argument("--pause", type=float, default=3.0, help="seconds before the next kill")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=output_file, help="write all figures")
    options = parser.parse_args(argv)
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
    total = len(run.failed) + len(run.decided) + len(run.undecided)
    result = {
        "kills": run.kills,
        "requests": total,
        "failed": len(run.failed),
        "undecided": len(run.undecided),
        "undecided_p50_s": round(percentile(run.undecided_s, 0.5), 2),
        "undecided_max_s": round(max(run.undecided_s), 2),
        "examples": sorted(set(run.failed))[:3],
    }
    print(orjson.dumps(result).decode())
    if options.json:
        options.json.write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2))
    met = not run.failed and max(run.undecided_s) <= UNDECIDED_S
    print(f"target: 0 failed, undecided <= {UNDECIDED_S:g} s: {'met' if met else 'MISSED'}")
    return 0 if met else MISSED


if __name__ == "__main__":
    sys.exit(main())
