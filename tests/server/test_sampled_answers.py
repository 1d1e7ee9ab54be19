"""Which answers a picker reads if it serves Envoys of both shapes."""

import grpc
import orjson
import pytest

from laar.protocol.sampling import CHUNKS_PER_S
from laar.server.extproc import SERVICE
from laar.wire import ext_proc_pb2 as pb

MODE = pb.ProcessingMode
CHUNKS = 1000


class Stream:
    """An ext_proc stream, as Envoy opens it."""

    def __init__(self, call, body_mode):
        self._call = call
        self._body_mode = body_mode

    async def request(self):
        """Send a chat request; return once it is decided."""
        head = pb.ProcessingRequest()
        head.protocol_config.request_body_mode = self._body_mode
        headers = head.request_headers.headers.headers
        headers.add(key=":method", raw_value=b"POST")
        headers.add(key=":path", raw_value=b"/v1/chat/completions")
        await self._call.write(head.SerializeToString())
        body = pb.ProcessingRequest()
        body.request_body.body = orjson.dumps({"model": "m", "messages": [], "stream": True})
        body.request_body.end_of_stream = True
        await self._call.write(body.SerializeToString())
        while (await self.read()).WhichOneof("response") != "request_body":
            pass

    async def answer_begins(self):
        """Send the headers of an answer; return the picker's reply."""
        message = pb.ProcessingRequest()
        message.response_headers.headers.headers.add(key=":status", raw_value=b"200")
        await self._call.write(message.SerializeToString())
        return await self.read()

    async def chunk(self, *, end=False):
        message = pb.ProcessingRequest()
        message.response_body.body = b"data: {}\n\n"
        message.response_body.end_of_stream = end
        await self._call.write(message.SerializeToString())
        await self.read()

    async def read(self):
        return pb.ProcessingResponse.FromString(await self._call.read())


@pytest.mark.parametrize("every_s", [0.001, 3600.0])
async def test_answers_seen_through_a_gateway_do_not_reduce_the_sample(gateway, every_s):
    gateway.members(("10.9.0.1:80", "m"))
    rarely = dict.fromkeys(("scrape_interval_s", "probe_interval_s"), 60)
    runner = await gateway.picker(
        bodies={"sample_answers": 1e-9, "sample_every_s": every_s}, readings=rarely
    )
    address = runner.picker.settings.listen.ext_proc
    async with grpc.aio.insecure_channel(address) as channel:
        process = channel.stream_stream(f"/{SERVICE}/Process")
        shown = Stream(process(), MODE.FULL_DUPLEX_STREAMED)
        await shown.request()
        await shown.answer_begins()
        for left in reversed(range(CHUNKS)):
            await shown.chunk(end=not left)
        sampled = Stream(process(), MODE.BUFFERED)
        await sampled.request()
        assert (await sampled.answer_begins()).mode_override.response_body_mode == MODE.STREAMED
        began = runner.picker.clock()
        for left in reversed(range(CHUNKS)):
            await sampled.chunk(end=not left)
    sampler = runner.picker.sampler
    assert not sampler.draw(began + 0.9 * CHUNKS / CHUNKS_PER_S)
    assert sampler.draw(began + 2 * 3600)
