"""Reset streams leave no memory behind in the picker."""

import asyncio
import ctypes
import gc
import statistics
import sys

import pytest

from laar.server.extproc import SERVICE
from support import eventually, port_of

pytestmark = pytest.mark.slow

STREAMS = 300
WARM_UP, HALF = 5, 4
"""Rounds to warm up, as HTTP/2 remembers a thousand ended streams, and rounds in each of the two
halves that are compared."""
MOST_BYTES = 40
"""Limit per stream: half the size of the smallest object that gRPC could leave behind."""

CLIENT = """
import asyncio, sys
import grpc
from laar.wire import ext_proc_pb2 as pb

async def main(port, path, streams):
    message = pb.ProcessingRequest()
    message.protocol_config.request_body_mode = 2  # BUFFERED: the headers get an answer
    headers = message.request_headers.headers.headers
    headers.add(key=":method", raw_value=b"POST")
    headers.add(key=":path", raw_value=b"/v1/chat/completions")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        process = channel.stream_stream(path)

        async def one():
            call = process()
            await call.write(message.SerializeToString())
            await call.read()
            call.cancel()

        for line in sys.stdin:
            for _ in range(streams // 20):
                await asyncio.gather(*(one() for _ in range(20)))
            print("done", flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


class Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def allocated_bytes():
    """Return the bytes allocated by malloc in this process, without Python's small objects."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        pytest.skip("needs glibc 2.33")
    libc.mallinfo2.restype = Mallinfo2
    return libc.mallinfo2().uordblks


async def test_streams_that_envoy_resets_leave_no_memory_behind(gateway):
    gateway.members(("10.9.0.1:80", "m"))
    rarely = dict.fromkeys(("scrape_interval_s", "probe_interval_s"), 60)
    runner = await gateway.picker(readings=rarely)
    metrics = runner.picker.metrics
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CLIENT, str(port_of(runner, "ext_proc")), f"/{SERVICE}/Process"),
        str(STREAMS),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    used = []
    try:
        for _ in range(WARM_UP + 2 * HALF):
            client.stdin.write(b"\n")
            assert await client.stdout.readline() == b"done\n"
            await eventually(lambda: metrics.streams_open == 0, what="the streams' ends")
            gc.collect()
            used.append(allocated_bytes())
    finally:
        client.kill()
        await client.wait()
    early, late = statistics.median(used[WARM_UP:-HALF]), statistics.median(used[-HALF:])
    assert (late - early) / (HALF * STREAMS) < MOST_BYTES
