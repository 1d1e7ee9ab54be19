"""What may follow an attempt: it surely did not arrive, may have acted, or is open (decision 9)."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from laar.protocol import headers as names
from laar.protocol.stream import attempts
from support.clients import CHAT, chat, post
from support.grids import crossed
from support.sockets import Arrived, SocketEngine, well

pytestmark = pytest.mark.envoy

SHAPES = ["standalone", "sidecar", "gateway", "full-duplex"]
TEXT = {"model": "m", "input": "hello"}
FORM = (
    b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n'
    b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n\0\1\r\n--x--\r\n'
)
ACTS = {  # creates or changes something, or may: nobody said that it only computes
    "/v1/batches": b'{"input_file_id":"f","endpoint":"/v1/chat/completions"}',
    "/v1/files": FORM,
    "/v1/uploads/u-1/parts": FORM,
    "/v1/conversations": b"{}",
    "/v1/conversations/c-1/items": b'{"items":[]}',
    "/v1/fine_tuning/jobs": b'{"model":"m","training_file":"f"}',
    "/v1/messages/batches": b'{"requests":[]}',
    "/v1/vector_stores": b"{}",
    "/v1/videos": FORM,
    "/v1/videos/generations": orjson.dumps(TEXT),
    "/v1/threads/t/runs": orjson.dumps(TEXT),
    "/something/else": orjson.dumps(TEXT),
    "/v1/responses": orjson.dumps(TEXT),  # stored, unless it says otherwise
    "/v1/responses?background": orjson.dumps({**TEXT, "background": True, "store": False}),
    "/v1/responses?mcp": orjson.dumps({**TEXT, "store": False, "tools": [{"type": "mcp"}]}),
    "/v1/chat/completions?store": chat(store=True),
}
COMPUTES = {
    CHAT: chat(),
    "/v1/completions": b'{"model":"m","prompt":"hello"}',
    "/v1/messages": chat(max_tokens=5),
    "/v1/responses": orjson.dumps({**TEXT, "store": False}),
    "/v1/embeddings": orjson.dumps(TEXT),
    "/v1/rerank": b'{"model":"m","query":"a","documents":["b"]}',
    "/tokenize": b'{"model":"m","prompt":"hello"}',
    "/v1/audio/transcriptions": FORM,
    "/v1/images/generations": b'{"model":"m","prompt":"hello"}',
}


async def resets(arrived: Arrived) -> None:
    await arrived.read()
    arrived.reset()


async def closes(arrived: Arrived) -> None:
    await arrived.read()


async def breaks_off(arrived: Arrived) -> None:
    await arrived.read()
    arrived.writer.write(b"HTTP/1.1 200 OK\r\ncontent-le")


def says(status: int):
    async def behave(arrived: Arrived) -> None:
        await arrived.read()
        await arrived.answer(status, b'{"error":{"message":"no"}}')

    return behave


FAILS = {
    "resets": resets,
    "closes": closes,
    "breaks-off": breaks_off,
    **{str(status): says(status) for status in (500, 502, 503, 504)},
}


class Fleet:
    """Three engines on sockets, a picker and an Envoy; the first attempt of a request fails."""

    def __init__(self, engines, envoy, http):
        self.engines, self.envoy, self.http = engines, envoy, http

    @property
    def arrived(self):
        return [request for engine in self.engines for request in engine.arrived]

    async def post(self, path, body, first=None, **headers):
        """Send a request whose first attempt meets `first`; return the answer and the attempts."""
        for engine in self.engines:
            engine.arrived.clear()

        async def behave(arrived):
            await (first if len(self.arrived) == 1 and first else well)(arrived)

        for engine in self.engines:
            engine.behavior = behave
        answer = await post(self.http, self.envoy, body, path, **headers)
        return answer, len(self.arrived)


@pytest.fixture
async def fleet(gateway, http):
    async def start(shape, count=3, **options):
        engines = [await gateway.enter(SocketEngine()) for _ in range(count)]
        gateway.members(*((engine.address, "m") for engine in engines))
        await gateway.picker()
        return Fleet(engines, await gateway.envoy(shape, **options), http)

    return start


@pytest.mark.parametrize("shape", SHAPES)
async def test_only_a_computation_is_repeated_once_it_may_have_arrived(fleet, figure, shape):
    running = await fleet(shape)
    wrong, copies = [], 0
    for failure, behave in FAILS.items():
        for path, body in [*ACTS.items(), *COMPUTES.items()]:
            form = {"content-type": "multipart/form-data; boundary=x"} if body is FORM else {}
            answer, attempts = await running.post(path, body, behave, **form)
            shown = int(failure) if failure.isdigit() else 503
            expected = (200, 2) if COMPUTES.get(path) is body else (shown, 1)
            if COMPUTES.get(path) is not body:
                copies = max(copies, attempts)
            if (answer.status, attempts) != expected:
                wrong.append(f"{failure} {path}: {answer.status} after {attempts}")
            for _ in range(3):  # so that neither prompt nor endpoint is suspected
                await running.post(path, body, **form)
    figure("copies of a creation, at most", copies, "1")
    assert not wrong


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_request_that_did_not_arrive_is_repeated_whatever_it_does(fleet, shape):
    running = await fleet(shape)
    for path, body in [*ACTS.items(), *COMPUTES.items()]:
        form = {"content-type": "multipart/form-data; boundary=x"} if body is FORM else {}
        answer, attempts = await running.post(path, body, says(429), **form)
        assert (answer.status, attempts) == (200, 2), path


def slowly(wait_s: float, status: int = 200):
    async def behave(arrived: Arrived) -> None:
        await arrived.read()
        await asyncio.sleep(wait_s)
        await arrived.answer(status, b'{"choices": [{"text": "slow"}]}')

    return behave


@pytest.fixture
def hurried(monkeypatch):
    """Hedge after a second."""
    monkeypatch.setattr(names, "BEGINS_S", (1,))
    for constant in ("_BEGIN_S", "_BEGIN", "_SLOW_TOKEN_S"):
        monkeypatch.setattr(attempts, constant, 0.0)
    return {"idle_timeout_s": 1234.0}  # a bootstrap that no other test uses


@pytest.mark.parametrize(("shape", "count"), crossed(SHAPES, [2, 3, 4]))
async def test_no_endpoint_gets_a_request_that_it_is_working_on(
    fleet, figure, shape, count, hurried
):
    running = await fleet(shape, count, **hurried)
    behaves = iter([slowly(4.5), *(slowly(9, 400) for _ in range(9))])
    for engine in running.engines:
        engine.behavior = lambda arrived: next(behaves)(arrived)
    answer = await post(running.http, running.envoy, chat(stream=True))
    assert (answer.status, b"slow" in answer.body) == (200, True)
    attempts = sorted(len(engine.arrived) for engine in running.engines)[-min(count, 3) :]
    figure("hedges to an endpoint with an open attempt", sum(attempts) - len(attempts), "0")
    assert attempts == [1] * min(count, 3)
    assert not any(name.startswith("x-envoy-hedged") for name in answer.headers)


@pytest.mark.parametrize(
    ("shape", "status"), crossed(SHAPES, [400, 401, 404, 409, 413, 422, 429, 500, 503])
)
async def test_an_error_of_a_hedged_attempt_does_not_end_an_open_one(fleet, shape, status, hurried):
    running = await fleet(shape, 2, **hurried)
    behaves = iter([slowly(2.5), says(status)])
    for engine in running.engines:
        engine.behavior = lambda arrived: next(behaves)(arrived)
    answer = await post(running.http, running.envoy, chat(stream=True))
    assert (answer.status, b"slow" in answer.body) == (200, True)
    assert [len(engine.arrived) for engine in running.engines] == [1, 1]


@pytest.mark.parametrize("shape", SHAPES)
async def test_an_error_of_the_last_open_attempt_reaches_the_client(fleet, shape, hurried):
    running = await fleet(shape, 2, **hurried)
    behaves = iter([slowly(2.5, 400), slowly(0.5, 422)])
    for engine in running.engines:
        engine.behavior = lambda arrived: next(behaves)(arrived)
    answer = await post(running.http, running.envoy, chat(stream=True))
    assert (answer.status, b"slow" in answer.body) == (400, True)


LONG = chat("long " * 1_600_000)


async def refuses(arrived: Arrived) -> None:
    await arrived.answer(401, b'{"error":{"message":"who?"}}')


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_long_body_that_engines_refuse_early_is_sent_once(fleet, shape):
    running = await fleet(shape)
    for engine in running.engines:
        engine.behavior = refuses
    answers = [await post(running.http, running.envoy, LONG) for _ in range(12)]
    assert {answer.status for answer in answers} <= {401, 503}  # whichever Envoy sees first
    assert len(running.arrived) == len(answers)
