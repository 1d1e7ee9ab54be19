"""What may follow an attempt: it surely did not arrive, may have acted, or is open (decision 9)."""

from __future__ import annotations

import asyncio
import itertools

import orjson
import pytest

from laar.protocol import headers as names
from laar.protocol.stream import attempts
from support.clients import CHAT, chat, post
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
    "/v1/images/generations": orjson.dumps(TEXT),  # dear to repeat
    "/v1/images/edits": FORM,
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
    **{str(status): says(status) for status in (429, 500, 502, 503, 504)},
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
    """The failure 429 says that nothing was done. Each shape meets a quarter of the cases."""
    running = await fleet(shape)
    wrong, copies = [], 0
    cases = itertools.product(FAILS.items(), [*ACTS.items(), *COMPUTES.items()])
    mine = itertools.islice(cases, SHAPES.index(shape), None, 4)
    for number, ((failure, behave), (path, body)) in enumerate(mine):
        form = {"content-type": "multipart/form-data; boundary=x"} if body is FORM else {}
        own = body + b" " * number  # a body that fails in several cases would be refused
        answer, attempts = await running.post(path, own, behave, **form)
        computes = COMPUTES.get(path) is body
        shown = int(failure) if failure.isdigit() else 502 if failure == "breaks-off" else 503
        stays = any(word in path for word in ("files", "uploads", "batches"))
        expected = (200, 2) if computes or (failure == "429" and not stays) else (shown, 1)
        if not computes and failure != "429":
            copies = max(copies, attempts)
        if (answer.status, attempts) != expected:
            wrong.append(f"{failure} {path}: {answer.status} after {attempts}")
        for _ in range(3):  # so that neither prompt nor endpoint is suspected
            await running.post(path, own, **form)
    figure("copies of a creation, at most", copies, "1")
    assert not wrong


@pytest.mark.parametrize("shape", ["standalone", "gateway"])
async def test_what_a_tenant_stores_stays_at_one_engine_whatever_it_answers(fleet, figure, shape):
    running = await fleet(shape, trust_gateway_headers=True)
    homes, elsewhere = set(), 0
    for number, status in enumerate([429, 503, 500, 529]):
        tenant = {"x-gateway-inference-fairness-id": f"tenant-{number}"}
        form = {"content-type": "multipart/form-data; boundary=x", **tenant}
        await running.post("/v1/files", FORM, **form)
        home = next(engine for engine in running.engines if engine.arrived)
        homes.add(home.address)
        for behave in (says(status), says(status), None):
            answer, attempts = await running.post("/v1/files", FORM, behave, **form)
            elsewhere += attempts - len(home.arrived)
            assert (answer.status, attempts) == (status if behave else 200, 1)
    figure("uploads stored at another engine of three", elsewhere, "0")
    assert elsewhere == 0


def slowly(wait_s: float, status: int = 200):
    async def behave(arrived: Arrived) -> None:
        await arrived.read()
        await asyncio.sleep(wait_s)
        await arrived.answer(status, b'{"choices": [{"text": "slow"}]}')

    return behave


@pytest.fixture
async def hedged(gateway, http, monkeypatch):
    """Return a function that sends one request for each model at the same time.

    Requests are hedged after a second. The argument maps each model to its number of engines, and
    to what its attempts meet, in turn. Returns the model's answer and the attempts at each engine.
    """
    monkeypatch.setattr(names, "BEGINS_S", (1,))
    for constant in ("_BEGIN_S", "_BEGIN", "_SLOW_TOKEN_S"):
        monkeypatch.setattr(attempts, constant, 0.0)

    async def ask(shape, fleets):
        engines = {model: [] for model in fleets}
        for model, (count, behaviors) in fleets.items():
            meets = iter(behaviors)
            for _ in range(count):
                engine = SocketEngine(lambda arrived, meets=meets: next(meets)(arrived))
                engines[model].append(await gateway.enter(engine))
        gateway.members(*((each.address, model) for model in fleets for each in engines[model]))
        await gateway.picker()
        # A timeout that no other test uses, so that no cached bootstrap is used.
        envoy = await gateway.envoy(shape, idle_timeout_s=1234.0)
        bodies = (chat(model=model, stream=True) for model in fleets)
        answers = await asyncio.gather(*(post(http, envoy, body) for body in bodies))
        arrived = ([len(each.arrived) for each in of] for of in engines.values())
        return dict(zip(fleets, zip(answers, arrived, strict=True), strict=True))

    return ask


@pytest.mark.parametrize("shape", SHAPES)
async def test_no_endpoint_gets_a_request_that_it_is_working_on(hedged, figure, shape):
    meets = [slowly(4.5), *(slowly(9, 400) for _ in range(9))]
    ended = await hedged(shape, {f"m{count}": (count, meets) for count in (2, 3, 4)})
    for model, (answer, counts) in ended.items():
        assert (answer.status, b"slow" in answer.body) == (200, True)
        figure(
            f"hedges of {model} to an open attempt", sum(counts) - len([*filter(None, counts)]), "0"
        )
        assert sorted(counts)[-2:] == [1, 1]
        assert sum(counts) == 2
        assert not any(name.startswith("x-envoy-hedged") for name in answer.headers)


@pytest.mark.parametrize("shape", SHAPES)
async def test_an_error_of_a_hedged_attempt_reaches_the_client_if_it_is_the_last(hedged, shape):
    statuses = [400, 401, 404, 409, 413, 422, 429, 500, 503]
    fleets = {f"m{status}": (2, [slowly(2.5), says(status)]) for status in statuses}
    fleets["last"] = (2, [slowly(2.5, 400), slowly(0.5, 422)])
    for model, (answer, counts) in (await hedged(shape, fleets)).items():
        assert answer.status == (400 if model == "last" else 200), model
        assert b"slow" in answer.body
        assert counts == [1, 1], model


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


@pytest.mark.parametrize("shape", ["standalone", "gateway"])
async def test_clients_see_no_failure_of_one_of_two_engines(gateway, http, figure, shape):
    """Whatever its status: each is met by a model of its own, by bodies that recur and others."""
    failures = sorted({408, 429, *range(502 + SHAPES.index(shape), 600, 17), 504, 529})
    of_clients = [300, 307]
    members = []
    for status in failures + of_clients:
        for behavior in (says(status), well):
            engine = await gateway.enter(SocketEngine(behavior))
            members.append((engine.address, f"m{status}"))
    gateway.members(*members)
    runner = await gateway.picker()
    envoy = await gateway.envoy(shape)
    seen = [
        (await post(http, envoy, chat(text, model=f"m{status}"))).status
        for status in failures
        for text in ("same", "same", "other", "same", "another")
    ]
    figure("failures of one of two engines that clients see", len(seen) - seen.count(200), "0")
    assert set(seen) == {200}
    for status in of_clients:  # as for a slash too many
        for _ in range(3):
            await post(http, envoy, chat(model=f"m{status}"))
    known = runner.picker.health.records.endpoints.values()
    out = [each.model for each in known if each.breaker.openings and each.model in ("m300", "m307")]
    figure("ejections for redirects", len(out), "0")
    assert not out
