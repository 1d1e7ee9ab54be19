"""A gateway that asks the picker and serves the request itself, as NGINX Gateway Fabric 2 does.

It shows the client's headers, no path and no modes, then the body; ends its side of the stream; and
reads the destination from the reply to the headers. It tells nothing about the answer.
"""

from __future__ import annotations

from typing import Any

import grpc

from laar.wire import ext_proc_pb2 as pb
from support import eventually
from support.clients import chat


async def destination(channel: grpc.aio.Channel, body: bytes, **headers: str) -> str:
    """Ask where a request goes; return an empty text if the reply does not say it."""
    call = channel.stream_stream(
        "/envoy.service.ext_proc.v3.ExternalProcessor/Process",
        request_serializer=pb.ProcessingRequest.SerializeToString,
        response_deserializer=pb.ProcessingResponse.FromString,
    )(timeout=10)
    sent = pb.ProcessingRequest(request_headers=pb.HttpHeaders(end_of_stream=not body))
    for name, value in {"host": "fleet", "content-type": "application/json", **headers}.items():
        sent.request_headers.headers.headers.add(key=name, value=value.encode())
    await call.write(sent)
    if body:
        whole = pb.HttpBody(body=body, end_of_stream=True)
        await call.write(pb.ProcessingRequest(request_body=whole))
    await call.done_writing()
    found = ""
    async for reply in call:
        if reply.HasField("immediate_response"):
            return f"{reply.immediate_response.status.code} {reply.immediate_response.body}"
        for option in reply.request_headers.response.header_mutation.set_headers:
            if option.header.key == "x-gateway-destination-endpoint":
                found = option.header.raw_value.decode()
    return found


async def test_a_gateway_that_shows_no_path_and_no_answers_keeps_conversations_together(
    gateway: Any,
) -> None:
    members = {(await gateway.upstream()).address: name for name in "mmmmnn"}
    gateway.members(*members.items())
    await gateway.picker()
    table = gateway.runner.picker.table
    async with grpc.aio.insecure_channel(gateway.settings.listen.ext_proc) as channel:
        for body in (chat(model="n"), b'{"model": "n", "prompt": "a"}', b'{"model": "n"}'):
            assert members[await destination(channel, body)] == "n"
        assert (await destination(channel, chat(model="nope"))).startswith("404")
        for name in range(6):
            turns = [f"{name} {'a line of a conversation ' * 400 * turn}" for turn in range(1, 4)]
            assert len({await destination(channel, chat(text)) for text in turns}) == 1
        assert await destination(channel, b"") in members
    await eventually(lambda: not table.in_flight.any(), what="no request in flight")
    assert table.decisions == 3 + 18 + 1
