"""Peers other than Envoy on the ext_proc port."""

import socket

import grpc
import pytest

from laar.errors import SettingError
from laar.server.extproc import SERVICE
from laar.server.extproc.messages import event_of
from laar.server.runner import Runner
from laar.wire import ext_proc_pb2 as pb
from support import eventually, free_port


@pytest.fixture
async def picker(gateway):
    gateway.members(("10.9.0.1:80", "m"))
    runner = await gateway.picker()
    async with grpc.aio.insecure_channel(runner.picker.settings.listen.ext_proc) as channel:
        yield runner, channel.stream_stream(f"/{SERVICE}/Process")


async def test_unreadable_messages_are_counted_and_logged_once(picker, caplog):
    runner, process = picker
    for _ in range(20):
        call = process(iter([b"\xff" * 50]))
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await call.read()
        assert ended.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    await eventually(lambda: runner.picker.metrics.streams_open == 0, what="the streams' ends")
    assert runner.picker.metrics.stream_faults == 20
    (record,) = (r for r in caplog.records if r.name.endswith("processor"))
    assert "not an Envoy message" in record.message
    assert not record.exc_info


@pytest.mark.parametrize(
    ("status", "seen"),
    [
        ("200", 200),
        ("599", 599),
        ("600", 599),
        ("99", 599),
        ("9" * 5000, 599),
        ("\u0662\u0660\u0660", 599),
        ("", 599),
        ("-200", 599),
    ],
)
def test_an_unknown_status_is_a_failure(status, seen):
    message = pb.ProcessingRequest()
    message.response_headers.headers.headers.add(key=":status", raw_value=status.encode())
    assert event_of(message).status == seen


@pytest.mark.parametrize("name", ["ext_proc", "health", "admin"])
@pytest.mark.usefixtures("picker")
async def test_a_second_picker_on_a_port_in_use_does_not_start(gateway, name):
    taken = getattr(gateway.settings.listen, name)
    addresses = {n: f"127.0.0.1:{free_port()}" for n in ("ext_proc", "health", "admin")}
    listen = gateway.settings.listen.model_copy(update={**addresses, name: taken})
    second = Runner(gateway.settings.model_copy(update={"listen": listen}))
    with pytest.raises(SettingError, match=f"listen.{name}: can't listen on {taken}"):
        await second.run()
    socket.create_connection(("127.0.0.1", int(taken.rpartition(":")[2]))).close()
