"""Clients that speak HTTP/2 to Envoy may send bodies as long as others' on every path."""

from __future__ import annotations

import asyncio

import pytest
from jh2.config import H2Configuration
from jh2.connection import H2Connection
from jh2.events import DataReceived, ResponseReceived, StreamEnded, StreamReset, WindowUpdated

from support.clients import connected

pytestmark = pytest.mark.envoy

LONG = b'{"prompt":"%b","model":"m"}' % (b"x" * (3 << 20))  # three times a stream's window
FORM = (
    b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n%b\r\n'
    b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n'
) % (b"\xff" * (3 << 20))
UPLOADS = (
    ("/tokenize", "application/json", LONG, True),
    ("/v1/completions", "application/json", LONG, True),
    ("/v1/completions", "application/json", LONG, False),
    ("/v1/audio/transcriptions", "multipart/form-data; boundary=b", FORM, True),
)


class Http2Post:
    """One POST over HTTP/2 without TLS; `status` is 0 if the stream is reset before an answer."""

    def __init__(self, reader, writer):
        self._reader, self._writer = reader, writer
        self._connection = H2Connection(H2Configuration(client_side=True))
        self._unsent = b""
        self.status = 0

    def begin(self, path, kind, body, *, has_length=True):
        headers = [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", path)]
        headers.append(("content-type", kind))
        if has_length:
            headers.append(("content-length", str(len(body))))
        self._unsent = body
        self._connection.initiate_connection()
        self._connection.send_headers(1, headers)
        self._send_more()

    async def send(self, path, kind, body, *, has_length):
        self.begin(path, kind, body, has_length=has_length)
        while data := await self._reader.read(1 << 16):
            if any(self._ended(event) for event in self._connection.receive_data(data)):
                break
        return self.status

    def _ended(self, event):
        if isinstance(event, ResponseReceived):
            self.status = int(dict(event.headers)[b":status"])
        elif isinstance(event, DataReceived):
            size = event.flow_controlled_length
            self._connection.acknowledge_received_data(size, 1)
        elif isinstance(event, WindowUpdated):
            self._send_more()
        return isinstance(event, (StreamEnded, StreamReset))

    def _send_more(self):
        connection = self._connection
        while self._unsent and (room := connection.local_flow_control_window(1)):
            size = min(room, connection.max_outbound_frame_size)
            piece, self._unsent = self._unsent[:size], self._unsent[size:]
            connection.send_data(1, piece, end_stream=not self._unsent)
        self._writer.write(connection.data_to_send())


@pytest.mark.parametrize("shape", ["sidecar", "standalone", "gateway"])
async def test_bodies_longer_than_a_streams_window_reach_the_engine(gateway, shape):
    upstream = await gateway.upstream()
    gateway.members((upstream.address, "m"))
    await gateway.picker()
    envoy = await gateway.envoy(shape)
    for path, kind, body, has_length in UPLOADS:
        async with connected(envoy) as (reader, writer), asyncio.timeout(60):
            status = await Http2Post(reader, writer).send(path, kind, body, has_length=has_length)
        assert status == 200, (path, has_length)
        assert upstream.asked[-1].body == body, (path, has_length)
