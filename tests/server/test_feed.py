"""The feed: frames only while there are viewers, and viewers that stop reading."""

import asyncio
import socket

import pytest

from laar.server.admin.feed import Feed
from support import eventually
from support.admin import admin_port


class Viewer:
    """One viewer's side of ASGI; `reads` controls whether sends complete."""

    def __init__(self, feed):
        self.frames = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.left = asyncio.Event()
        scope = {"type": "http", "method": "GET"}
        self.task = asyncio.create_task(feed(scope, self._receive, self._send))

    async def _receive(self):
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        await self.reads.wait()
        if message["type"] == "http.response.body":
            self.frames.append(message["body"])


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr("laar.server.admin.feed.INTERVAL_S", 0.01)


class Frames:
    """Makes frames, and counts them."""

    def __init__(self):
        self.made = 0

    def __call__(self):
        self.made += 1
        return {"n": self.made}


async def running(feed):
    return asyncio.create_task(feed.run())


async def test_no_frame_is_rendered_without_viewers_and_all_viewers_share_each():
    frames = Frames()
    feed = Feed(frames)
    task = await running(feed)
    await asyncio.sleep(0.05)
    assert frames.made == 0
    viewers = [Viewer(feed) for _ in range(10)]
    await eventually(lambda: all(len(v.frames) >= 5 for v in viewers), what="frames")
    assert frames.made <= max(len(v.frames) for v in viewers) + 1
    assert viewers[0].frames[:4] == viewers[9].frames[:4]
    for viewer in viewers:
        viewer.left.set()
    await asyncio.gather(*(v.task for v in viewers))
    assert feed.viewers == 0
    made = frames.made
    await asyncio.sleep(0.05)
    assert frames.made <= made + 1
    again = Viewer(feed)
    await eventually(lambda: len(again.frames) >= 2, what="frames for a late viewer")
    assert int(again.frames[0].partition(b":")[2].strip(b' {"n:}\n')) > made
    again.task.cancel()
    task.cancel()


async def test_a_slow_viewer_misses_frames_and_delays_no_one():
    feed = Feed(Frames())
    task = await running(feed)
    slow, quick = Viewer(feed), Viewer(feed)
    await eventually(lambda: bool(slow.frames and quick.frames), what="first frames")
    slow.reads.clear()
    seen, before = len(slow.frames), len(quick.frames)
    await eventually(lambda: len(quick.frames) >= before + 20, what="frames for the quick one")
    slow.reads.set()
    await eventually(lambda: len(slow.frames) >= seen + 2, what="frames for the slow one")
    assert len(slow.frames) < len(quick.frames) - 10
    for viewer in (slow, quick):
        viewer.left.set()
        await viewer.task
    task.cancel()


async def test_a_viewer_that_stops_reading_is_cut_off_before_it_fills_the_memory(http, monkeypatch):
    monkeypatch.setattr("laar.server.admin.server.WAIT_S", 0.3)
    frame = "x" * 200_000
    feed = Feed(lambda: {"n": frame})
    task = await running(feed)
    async with admin_port(feed) as server:
        stalled = socket.create_connection(("127.0.0.1", server.port))
        stalled.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await eventually(lambda: feed.viewers == 1, what="the stalled viewer")
        held = 0
        async with http.get(f"http://127.0.0.1:{server.port}/") as quick:
            read = 0
            while read < 60 * len(frame) or feed.viewers > 1:
                read += len(await quick.content.readany())
                connections = server.server_state.connections
                held = max(held, sum(c.transport.get_write_buffer_size() for c in connections))
        assert held > 0  # because one viewer did not read
        assert held < 3 * len(frame)
        stalled.close()
    task.cancel()
