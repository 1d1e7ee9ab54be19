"""A server of `laar.server` with test methods, and hand-made peers."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from jh2.config import H2Configuration
from jh2.connection import H2Connection
from jh2.settings import SettingCodes, Settings

from laar.server.h2 import H2Server
from laar.server.transport import Handler
from support import free_port

LONGEST_BYTES = 64 << 20
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/test.Test/Echo"),
    (":authority", "test"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]


class Echo(Handler):
    """Echoes each message; received ones are kept in `seen`."""

    def __init__(self, call, seen):
        self.call, self.seen = call, seen
        seen.append(("open", None))

    def receive(self, message):
        self.seen.append(("message", len(message)))
        if message == b"hold":
            self.call.hold()
        elif message == b"fault":
            raise ValueError("as it was asked to")
        elif message.startswith(b"many"):
            self.call.send(b"x" * int(message[4:]))
        elif message != b"silent":
            self.call.send(message)

    def half_closed(self):
        self.seen.append(("half-closed", None))
        self.call.end()

    def closed(self):
        self.seen.append(("closed", None))


class Served:
    """A running server."""

    def __init__(self, server, port):
        self.server, self.port = server, port
        self.seen = []
        self.calls = []

    def begin(self, call):
        self.calls.append(call)
        return Echo(call, self.seen)

    def count(self, what):
        return sum(kind == what for kind, _ in self.seen)


@asynccontextmanager
async def serving(**options):
    server = H2Server(longest_bytes=LONGEST_BYTES, **options)
    served = Served(server, free_port())
    server.add_method("test.Test", "Echo", served.begin)
    server.bind(f"127.0.0.1:{served.port}")
    await server.start()
    try:
        yield served
    finally:
        await server.stop(0)


def framed(message):
    """Return a gRPC message with its length prefix."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def frame(kind, flags=0, stream=0, payload=b"", length=None):
    size = len(payload) if length is None else length
    return size.to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


class Peer:
    """A raw connection; `h2` is the library's client side, which a test may use."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.h2 = H2Connection(H2Configuration(client_side=True, validate_outbound_headers=False))
        self.events = []

    @classmethod
    @asynccontextmanager
    async def to(cls, served, *, window=None, greet=True):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        peer = cls(reader, writer)
        try:
            if greet:
                if window is not None:
                    initial = {SettingCodes.INITIAL_WINDOW_SIZE: window}
                    peer.h2.local_settings = Settings(client=True, initial_values=initial)
                peer.h2.initiate_connection()
                await peer.flush()
            yield peer
        finally:
            writer.close()

    async def flush(self):
        await self.send(self.h2.data_to_send())

    async def send(self, data):
        try:
            self.writer.write(data)
            await self.writer.drain()
        except ConnectionError:
            pass  # the server has closed the connection; the test notices when it reads

    def call(self, number, *, headers=HEADERS, end=False):
        self.h2.send_headers(number, headers, end_stream=end)

    def message(self, number, data, *, end=False):
        self.h2.send_data(number, b"\0" + len(data).to_bytes(4, "big") + data, end_stream=end)

    def messages(self, numbers, data):
        """Begin a call on each of these streams with a message."""
        for number in numbers:
            self.call(number)
            self.message(number, data)

    def stop_reading(self):
        """Leave what arrives on the socket there, although the connection's window is open."""
        self.writer.transport.pause_reading()
        self.h2.increment_flow_control_window(1 << 30)

    async def until(self, condition, timeout_s=20):
        """Read until an event matches; return None if the connection ends first."""
        async with asyncio.timeout(timeout_s):
            while True:
                for event in self.events:
                    if condition(event):
                        return event
                try:
                    data = await self.reader.read(65536)
                except ConnectionError:
                    data = b""
                if not data:
                    return None
                self.events += self.h2.receive_data(data)
                await self.flush()

    async def closed(self, timeout_s=20):
        """Read to the end of the connection."""
        async with asyncio.timeout(timeout_s):
            try:
                while await self.reader.read(65536):
                    pass
            except ConnectionError:
                pass
