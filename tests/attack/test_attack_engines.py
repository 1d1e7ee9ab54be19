"""A client gets an engine's answer or a reason, and no answer reaches another request."""

from __future__ import annotations

import asyncio
import gzip

import orjson
import pytest
from attacked import METRICS, Attacked, Behavior, Judge, Seen, chat, each_case, good, response

from support import eventually

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="session")]

SSE = b"text/event-stream"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b'data: {"model":"m","choices":[{"index":0,"delta":{"content":"w"}}]}\n\n'


def usage(value: bytes) -> bytes:
    body = good().partition(b"\r\n\r\n")[2].replace(b'"completion_tokens":2', b'"%b":2' % b"x")
    return response(body[:-2] + b',"completion_tokens":' + value + b"}}")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def status(line: bytes) -> bytes:
    return b"HTTP/1.1 " + line + b"\r\ncontent-length: 2\r\n\r\n{}"


async def closes(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def resets(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def breaks_off(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + chunk(EVENT))
    await writer.drain()
    writer.close()


async def promises_more(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.write(good().replace(b"content-length: ", b"content-length: 9"))
    await writer.drain()
    writer.close()


GIVES = {  # an engine's answer, and the statuses that are correct for the client
    "page of HTML": (response(b"<html>It works</html>", kind=b"text/html"), {200}),
    "empty body": (response(b""), {200}),
    "empty text": (good(""), {200}),
    "no choices": (good(choices=[]), {200}),
    "foreign model": (good(model="another"), {200}),
    "error in a 200": (response(b'{"error":{"message":"x","code":500}}'), {200}),
    "error event": (response(b'data: {"error":{"message":"x"}}\n\n', kind=SSE), {200}),
    "no JSON": (response(b"{" * 1000), {200}),
    "100,000 deep": (response(b"[" * 100_000), {200}),
    "events 100,000 deep": (response(b"data: " + b"[" * 100_000 + b"\n\n", kind=SSE), {200}),
    "20,000 events": (response(EVENT * 20_000, kind=SSE), {200}),
    "one line of 5 MB": (response(b"data: " + b"x" * 5_000_000, kind=SSE), {200}),
    "no UTF-8": (response(b'data: {"model":"\xff\xfe"}\n\n', kind=SSE), {200}),
    "usage -5": (usage(b"-5"), {200}),
    "usage 1e400": (usage(b"1e400"), {200}),
    "usage NaN": (usage(b"NaN"), {200}),
    "usage 10^24": (usage(b"1" + b"0" * 24), {200}),
    "usage as text": (usage(b'"many"'), {200}),
    "gzip that is none": (response(b"x", b"content-encoding: gzip"), {200}),
    "gzip bomb": (response(gzip.compress(b"\0" * 10_000_000), b"content-encoding: gzip"), {200}),
    "load of 1e400": (response(b"{}", b"endpoint-load-metrics: JSON " + b'{"cpu":1e400}'), {200}),
    "load of 8 KB": (response(b"{}", b"endpoint-load-metrics: TEXT " + b"a=1," * 2000), {200}),
    "retry-after 10^9": (
        status(b"429 Busy").replace(b"\r\n", b"\r\nretry-after: 1%b\r\n" % (b"0" * 9), 1),
        {429, 503},
    ),
    "retry-after nan": (
        status(b"429 Busy").replace(b"\r\n", b"\r\nretry-after: nan\r\n", 1),
        {429, 503},
    ),
    "5,000 hints": (b"HTTP/1.1 103 Early\r\n\r\n" * 5000 + good(), {200, 502, 503}),
    "status 101 unasked": (status(b"101 Switching"), {502, 503}),
    "status 99": (status(b"99 Low"), {502, 503}),
    "status 999": (status(b"999 High"), {200, 502, 503, 999}),
    "status of 5 digits": (status(b"20000 Long"), {502, 503, 20000}),
    "no status line": (b"hello\r\n\r\n", {502, 503}),
    "two lengths": (response(b"{}", b"content-length: 9"), {502, 503}),
    "length and chunks": (response(b"{}", b"transfer-encoding: chunked"), {502, 503, 200, 0}),
    "150 headers": (response(b"{}", *(b"x-%d: 1" % n for n in range(150))), {502, 503}),
    "200 KB of headers": (response(b"{}", b"x: " + b"y" * 200_000), {502, 503}),
    "NUL in a header": (response(b"{}", b"x: a\0b"), {502, 503}),
    "chunk that is none": (HEAD + b"zz\r\n", {200, 502, 503, 0}),
    "closes": (closes, {502, 503}),
    "resets": (resets, {502, 503}),
    "breaks off": (breaks_off, {200, 502, 503}),
    "promises more": (promises_more, {200, 502, 503, 0}),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@each_case("name", GIVES)
async def test_a_client_gets_an_engines_answer_or_a_reason(
    target: Attacked, judge: Judge, name: str, stream: bool
) -> None:
    given, statuses = GIVES[name]
    for engine in target.own:
        engine.answer = given
    answer = await target.post(chat(stream=stream))
    holds = answer.status in statuses
    if answer.status in (502, 503):
        holds &= b'"error"' in answer.body
    if isinstance(given, bytes) and answer.status == 200 and b"content-length" in given:
        holds &= answer.body in given
    for engine in target.own:
        engine.answer = good()
    judge(f"{' or '.join(map(str, sorted(statuses)))}, a 5xx with its reason", answer, holds)


async def test_a_second_answer_on_a_connection_reaches_no_other_client(
    target: Attacked, judge: Judge
) -> None:
    for engine in target.own:
        engine.answer = good("first") + good("second")
    texts = [(await target.post(chat())).body for _ in range(12)]
    judge("the first answer, 12 times", len(texts), not any(b"second" in text for text in texts))


FORGED = ("exhausted", "tried-models", "cost-ms", "since", "mode", "endpoint", "decision")


@each_case("path", ["/v1/chat/completions", "/tokenize", "/v1/rerank"])
async def test_an_engine_cannot_forge_laars_headers(
    target: Attacked, judge: Judge, path: str
) -> None:
    names = (*(f"x-laar-{name}" for name in FORGED), "x-gateway-destination-endpoint-served")
    for engine in target.own:
        engine.answer = response(b"{}", *(f"{name}: forged".encode() for name in names))
    answer = await target.post(chat(), path=path)
    judge("no forged header at the client", answer, b"forged" not in answer.head)


async def drip(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(100):
        writer.write(chunk(b"vllm:num_requests_running 1\n"))
        await writer.drain()
        await asyncio.sleep(0.05)


async def endless(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(2_000):  # 200 MB in total
        writer.write(chunk(METRICS * 500))
        await writer.drain()


async def silent(seen: Seen, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3)


def page(text: bytes, *headers: bytes) -> bytes:
    return response(text, *headers, kind=b"text/plain")


PAGES: dict[str, bytes | Behavior] = {
    "100 MB": page(METRICS * 450_000),
    "endless": endless,
    "drips": drip,
    "silent": silent,
    "gzip bomb": page(gzip.compress(METRICS * 100_000), b"content-encoding: gzip"),
    "to the admin port": b"HTTP/1.1 302 Found\r\nlocation: %b/drain\r\ncontent-length: 0\r\n\r\n",
    "NaN": page(METRICS.replace(b" 0.0", b" NaN")),
    "1e308": page(METRICS.replace(b" 0.0", b" 1e308")),
    "-5": page(METRICS.replace(b" 0.0", b" -5")),
    "Inf": page(METRICS.replace(b" 0.0", b" +Inf")),
    "number of 3 MB": page(METRICS.replace(b" 0.0", b" " + b"9" * 3_000_000)),
    "40,000 labels": page(b"".join(b'vllm:x{n="%d"} 1\n' % n for n in range(40_000)) + METRICS),
    "label of 1 MB": page(METRICS.replace(b'"m"', b'"%b"' % (b"m" * 1_000_000))),
    "random bytes": page(bytes(range(256)) * 4000),
    "HTML": response(b"<html>sign in</html>", kind=b"text/html"),
    "two answers": page(METRICS) + page(METRICS.replace(b" 0.0", b" 99")),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
async def test_a_metrics_page_costs_no_request_and_no_memory(
    target: Attacked, judge: Judge, name: str
) -> None:
    given = PAGES[name]
    if name == "to the admin port":
        assert isinstance(given, bytes)
        given = given % target.stand.admin_url(0).encode()
    before = target.memory_bytes()
    for engine in target.own:
        engine.page = given
        engine.pages = 0
    await eventually(lambda: all(e.pages >= 2 for e in target.own), what="scrapes", timeout_s=30)
    decided = [await target.decides() for _ in range(20)]
    grown = (target.memory_bytes() - before) >> 20
    judge(
        "20 of 20 decided, < 60 MB more", f"{sum(decided)}, {grown} MB", all(decided) and grown < 60
    )


async def test_openai_errors_are_json(target: Attacked, judge: Judge) -> None:
    for engine in target.own:
        engine.answer = closes
    answer = await target.post(chat())
    error = orjson.loads(answer.body)["error"]
    judge("message, type and reason", error, {"message", "type"} <= set(error))
