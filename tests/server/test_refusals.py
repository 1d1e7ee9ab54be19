"""laar counts its own answers once, and the requests that another endpoint served."""

import tracemalloc
from dataclasses import replace

import pytest
from bench.bench_decision import Caller

from laar.fleet.membership import POOL_LABEL, EndpointSpec
from laar.server.extproc.exchange import Exchange
from laar.server.extproc.processor import ExternalProcessor
from laar.server.picker import Picker
from laar.settings import Settings
from laar.wire import ext_proc_pb2 as pb

CHAT = "/v1/chat/completions"


@pytest.fixture
async def processor():
    settings = Settings.model_validate({"endpoints": [{"address": "127.0.0.1:9", "model": "m"}]})
    picker = Picker(settings, seed=1, clock=lambda: 1.0)
    picker.table.replace("test", settings.listed())
    made = ExternalProcessor(picker)
    yield made
    made.reader.shutdown()


def opened(processor, enforced=True):
    processor.env = replace(processor.env, enforced=lambda _key: enforced)
    return Exchange(processor, Caller())


def begin(exchange: Exchange, path: str, method="POST", *, end=False, pool="") -> None:
    message = pb.ProcessingRequest()
    message.protocol_config.request_body_mode = pb.ProcessingMode.FULL_DUPLEX_STREAMED
    message.request_headers.end_of_stream = end
    for name, value in ((":path", path), (":method", method)):
        message.request_headers.headers.headers.add(key=name, raw_value=value.encode())
    if pool:
        fields = message.attributes["envoy.filters.http.ext_proc"].fields
        fields["xds.route_metadata.filter_metadata.laar.pool"].string_value = pool.encode()
    exchange.receive(message.SerializeToString())


def send(exchange: Exchange, body: bytes) -> None:
    message = pb.ProcessingRequest()
    message.request_body.body = body
    message.request_body.end_of_stream = True
    exchange.receive(message.SerializeToString())


async def test_answers_by_laar_itself_are_counted_once_by_reason(processor):
    begin(opened(processor), "/sleep")
    for body in (b"no JSON", b'{"model": "unknown"}', b'{"model": "m"}'):
        exchange = opened(processor)
        begin(exchange, CHAT)
        send(exchange, body)
    begin(opened(processor), "/v1/models", "GET", end=True)
    shadow = opened(processor, enforced=False)
    begin(shadow, CHAT)
    send(shadow, b'{"model": "unknown"}')  # is not refused in shadow mode
    broken = opened(processor)
    begin(broken, CHAT, pool="p")
    processor.ask = None
    send(broken, b'{"model": "m"}')  # must be refused: Envoy would choose from all pools
    assert broken._call.answers
    assert dict(processor.metrics.refusals) == {
        ("200", "models"): 1,
        ("403", "denied-path"): 1,
        ("400", "bad-request"): 1,
        ("404", "unknown-model"): 1,
        ("503", "picker-fault"): 1,
    }


async def test_a_model_is_listed_in_its_pool_and_unknown_in_another(processor):
    pooled = EndpointSpec(address="b:1", models=("org/n",), labels={POOL_LABEL: "p"})
    processor.director.table.replace("pool", [pooled])
    answered = []
    for pool, name in (("p", "org%2Fn/?x=1"), ("p", "m"), ("", "org/n"), ("", "m"), ("", "n")):
        exchange = opened(processor)
        begin(exchange, f"/v1/models/{name}", "GET", end=True, pool=pool)
        [answer] = map(pb.ProcessingResponse.FromString, exchange._call.answers)
        answered.append(answer.immediate_response.status.code)
    assert answered == [200, 404, 200, 200, 404]


async def test_lists_of_former_models_are_not_kept(processor):
    """Loading an adapter changes the fleet, and engines may list thousands over time."""
    table, taken = processor.director.table, []
    tracemalloc.start()
    for version in range(8):
        names = ("base", *(f"adapter-{version}-{number}" for number in range(300)))
        table.replace("other", [EndpointSpec(address="b:1", models=names)])
        for path in ("/v1/models", f"/v1/models/{names[9]}"):
            exchange = opened(processor)
            begin(exchange, path, "GET", end=True)
            [answer] = map(pb.ProcessingResponse.FromString, exchange._call.answers)
            assert names[9].encode() in answer.immediate_response.body
        taken.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert taken[-1] - taken[0] < 1_500_000  # the open exchanges keep their answers


@pytest.mark.parametrize(("served_by", "moved"), [("127.0.0.1:9", 0), ("127.0.0.2:9", 1)])
async def test_a_retry_at_the_picked_endpoint_does_not_move_the_request(
    processor, served_by, moved
):
    exchange = opened(processor)
    begin(exchange, CHAT)
    send(exchange, b'{"model": "m", "messages": [{"role": "user", "content": "Hello"}]}')
    answer = pb.ProcessingRequest()
    answer.response_headers.headers.headers.add(key=":status", raw_value=b"200")
    fields = answer.attributes["envoy.filters.http.ext_proc"].fields
    fields["upstream.address"].string_value = served_by.encode()
    fields["upstream.request_attempt_count"].number_value = 2
    fields["response.code_details"].string_value = b"via_upstream"
    exchange.receive(answer.SerializeToString())
    assert processor.metrics.failed_attempts == 1
    assert processor.metrics.moved == moved
