"""Messages in any order to a picker that serves: no stream hangs, none leaves anything behind."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
import traceback

import grpc

from fuzz.choices import Choices
from fuzz.streams import ADDRESSES, message
from laar.server.extproc import SERVICE
from laar.server.runner import Runner
from laar.settings import Settings

__all__ = ["run"]

_STREAM_S = 20.0
_AT_ONCE = 16
_CHECK_EVERY = 200


def run(seconds: float, inputs: int, seed: int) -> tuple[int, float, int, int]:
    """Streams run, seconds, crashes, hangs; ends at the first finding."""
    return asyncio.run(_run(seconds, inputs, seed))


async def _run(seconds: float, inputs: int, seed: int) -> tuple[int, float, int, int]:
    rng = random.Random(seed)
    runner = Runner(_settings(), seed=seed)
    started = asyncio.Event()
    running = asyncio.create_task(runner.run(started=started))
    began, done = time.monotonic(), 0
    try:
        await asyncio.wait_for(started.wait(), 30.0)
        async with grpc.aio.insecure_channel(runner.picker.settings.listen.ext_proc) as channel:
            process = channel.stream_stream(f"/{SERVICE}/Process")
            while done < inputs and time.monotonic() - began < seconds:
                count = min(_CHECK_EVERY, inputs - done)
                for _ in range(0, count, _AT_ONCE):
                    calls = [_stream(process, rng.randbytes(300)) for _ in range(_AT_ONCE)]
                    await asyncio.wait_for(asyncio.gather(*calls), _STREAM_S)
                    done += _AT_ONCE
                await _at_rest(runner)
    except TimeoutError:
        return done, time.monotonic() - began, 0, 1
    except Exception:  # noqa: BLE001 - that is the finding
        traceback.print_exc()
        return done, time.monotonic() - began, 1, 0
    finally:
        runner.stop()
        with contextlib.suppress(Exception):
            await asyncio.wait_for(running, 30.0)
    return done, time.monotonic() - began, 0, 0


async def _stream(process: grpc.aio.StreamStreamMultiCallable, data: bytes) -> None:
    """Send a few messages, and end the stream in one of three ways."""
    choices = Choices(data)
    way = choices.number(3)
    sent = [message(choices) for _ in range(1 + choices.number(8))]
    call = process(iter(sent) if way == 0 else None)
    try:
        if way == 0:
            async for _ in call:
                pass
            return
        for one in sent:
            await call.write(one)
        if way == 1:
            await call.done_writing()
            async for _ in call:
                pass
        else:
            call.cancel()
    except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
        pass  # the picker ended it first
    except asyncio.CancelledError:
        if way != 2:
            raise


async def _at_rest(runner: Runner) -> None:
    """Wait until nothing is under way, and look whether the books say so."""
    deadline = time.monotonic() + _STREAM_S
    while runner.picker.metrics.streams_open:
        if time.monotonic() > deadline:
            raise TimeoutError
        await asyncio.sleep(0.01)
    assert not runner.picker.table.in_flight.any()
    assert abs(float(runner.picker.table.queued_tokens.sum())) < 1e-6
    assert runner.picker.held.now_bytes == 0
    bad = runner.picker.director.degraded
    assert not bad, bad


def _settings() -> Settings:
    return Settings.model_validate(
        {
            "endpoints": [{"address": a, "models": ["m", "auto"]} for a in ADDRESSES],
            "listen": {n: f"127.0.0.1:{_free_port()}" for n in ("ext_proc", "health", "admin")},
            "readings": {"scrape_interval_s": 60, "probe_interval_s": 600},
            "shutdown": {"drain_s": 0, "grace_s": 0},
        }
    )


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
