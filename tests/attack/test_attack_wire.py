"""No bytes of a client make an engine get a request that Envoy and laar read differently."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

import pytest
from attacked import PATH, Attacked, Judge, chat, each_case

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="session")]

BODY = chat()
SMUGGLED = b"POST /sleep HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n"
POST = b"POST %s HTTP/1.1\r\n" % PATH.encode()
HOST = b"host: a\r\ncontent-type: application/json\r\n"
LENGTH = b"content-length: %d\r\n" % len(BODY)
CHUNKED = b"transfer-encoding: chunked\r\n"


def chunks(*parts: bytes, extension: bytes = b"", trailers: bytes = b"") -> bytes:
    sizes = b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts)
    return sizes + b"0\r\n" + trailers + b"\r\n"


@dataclass(frozen=True)
class Case:
    """Bytes, the correct statuses (0 if closed), and whether one request may arrive."""

    name: str
    sent: bytes
    statuses: tuple[int, ...]
    arrives: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def expected(self) -> str:
        wanted = " or ".join(str(status) if status else "closed" for status in self.statuses)
        return f"{wanted}; {'one request, as sent' if self.arrives else 'nothing'} at an engine"


def case(name: str, headers: bytes, body: bytes, *statuses: int, arrives: bool = False) -> Case:
    return Case(name, POST + HOST + headers + b"\r\n" + body, statuses, arrives)


CASES = [
    case("CL and TE", LENGTH + CHUNKED, chunks(BODY) + SMUGGLED, 400),
    case("TE and CL 0", b"content-length: 0\r\n" + CHUNKED, chunks(BODY) + SMUGGLED, 400),
    case("two lengths", LENGTH + b"content-length: 5\r\n", BODY + SMUGGLED, 400),
    case("two equal lengths", LENGTH + LENGTH, BODY, 400),
    case("length list", b"content-length: 5, 6\r\n", BODY, 400),
    case("length +", b"content-length: +%d\r\n" % len(BODY), BODY, 400),
    case("length -", b"content-length: -1\r\n", BODY, 400),
    case("length in hex", b"content-length: 0x20\r\n", BODY, 400),
    case("length of 30 digits", b"content-length: %s\r\n" % (b"9" * 30), BODY, 400),
    case("TE in two words", b"transfer-encoding: chunked, identity\r\n", chunks(BODY), 400, 501),
    case("TE unknown", b"transfer-encoding: xchunked\r\n", chunks(BODY) + SMUGGLED, 400, 501),
    case("TE twice", CHUNKED + CHUNKED, chunks(BODY) + SMUGGLED, 400, 501),
    case("space before colon", b"transfer-encoding : chunked\r\n" + LENGTH, BODY, 400),
    case("folded line", LENGTH + b"x-a: b\r\n c\r\n", BODY, 200, 400, arrives=True),
    case("NUL in a value", LENGTH + b"x-a: b\0c\r\n", BODY, 400),
    case(
        "lone CR in a value",
        LENGTH + b"x-a: b\rtransfer-encoding: chunked\r\n",
        BODY,
        200,
        400,
        arrives=True,
    ),
    case("no name", LENGTH + b": b\r\n", BODY, 400),
    case("control byte in a name", LENGTH + b"x\x01a: b\r\n", BODY, 400),
    case("chunk extension", CHUNKED, chunks(BODY, extension=b";a=b"), 200, arrives=True),
    case("chunk size of 20 digits", CHUNKED, b"f" * 20 + b"\r\n" + BODY, 400, 0),
    case("chunk size that is none", CHUNKED, b"zz\r\n" + BODY, 400, 0),
    case("bare LF in chunks", CHUNKED, chunks(BODY).replace(b"\r\n", b"\n"), 400, 0),
    case(
        "trailers that control",
        CHUNKED + b"te: trailers\r\n",
        chunks(
            BODY, trailers=b"x-gateway-destination-endpoint: 6.6.6.6:1\r\ncontent-length: 1\r\n"
        ),
        200,
        arrives=True,
    ),
    case(
        "connection: content-length",
        LENGTH + b"connection: content-length, x-a\r\nx-a: 1\r\n",
        BODY,
        200,
        400,
        arrives=True,
    ),
    case("expect", LENGTH + b"expect: 100-continue\r\n", BODY, 200, arrives=True),
    case("expect something else", LENGTH + b"expect: tea\r\n", BODY, 200, 417, arrives=True),
    case(
        "h2c upgrade",
        LENGTH + b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAA\r\n",
        BODY,
        *(200, 400, 403),
        arrives=True,
    ),
    Case(
        "HTTP/1.0", POST.replace(b"1.1", b"1.0") + HOST + LENGTH + b"\r\n" + BODY, (200, 426), True
    ),
    Case("HTTP/0.9", b"GET /v1/models\r\n\r\n", (200, 400, 0)),
    Case(
        "HTTP/3.7",
        POST.replace(b"1.1", b"3.7") + HOST + LENGTH + b"\r\n" + BODY,
        (200, 400, 0),
        arrives=True,
    ),
    Case("HTTP/2 without TLS", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 60, (400, 0)),
    Case("no host", POST + LENGTH + b"\r\n" + BODY, (400,)),
    Case(
        "absolute URI",
        b"POST http://6.6.6.6:1%s HTTP/1.1\r\n" % PATH.encode() + HOST + LENGTH + b"\r\n" + BODY,
        (200, 400),
        True,
    ),
    Case("CONNECT", b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nhost: 127.0.0.1:1\r\n\r\n", (400, 403, 404)),
    Case("TRACE", b"TRACE / HTTP/1.1\r\nhost: a\r\n\r\n", (200, 400, 405), True),
    Case("random bytes", bytes(range(256)) * 8, (400, 0)),
]


@each_case("case", CASES)
async def test_ambiguous_requests_are_read_in_only_one_way(
    target: Attacked, judge: Judge, case: Case
) -> None:
    answer = await target.raw(case.sent)
    reached = target.reached()
    seen = f"{answer}; {len(reached)} at an engine"
    holds = answer.status in case.statuses
    holds &= len(reached) == (case.arrives and answer.status == 200)
    for request in reached:
        seen += "" if request.body == BODY else f" with {request.body[:40]!r}"
        holds &= request.body in (BODY, b"") and request.line.endswith(b" HTTP/1.1")
        holds &= b"6.6.6.6" not in request.head.replace(b"host: 6.6.6.6:1", b"")
        # Engines interpret a lone CR or LF differently, so none may get one.
        rest = request.head.replace(b"\r\n", b"")
        holds &= b"\r" not in rest and b"\n" not in rest
    judge(case.expected, seen, holds)


@each_case("encoding", ["gzip", "br", "deflate", "zstd", "identity", "gzip, gzip"])
async def test_compressed_bodies_arrive_as_sent_or_are_refused(
    target: Attacked, judge: Judge, encoding: str
) -> None:
    body = zlib.compress(BODY) if encoding == "deflate" else b"\x1f\x8b\x08\0" + BODY
    answer = await target.post(body, b"content-encoding: " + encoding.encode())
    reached = target.reached()
    holds = answer.status in (200, 400, 415) and all(seen.body == body for seen in reached)
    judge("200, 400 or 415; the body as sent if at all", answer, holds)


@each_case(
    "name",
    ["m\r\nx-evil: 1", "m\nx-evil: 1", "m\0", "m\x7f", "m" * 100_000, "\U0001f600" * 50, "m,x"],
)
async def test_a_model_name_cannot_inject_a_header(
    target: Attacked, judge: Judge, name: str
) -> None:
    answer = await target.post(chat(model=name))
    holds = answer.status == 404 and b"\nx-evil" not in answer.head and not target.reached()
    judge("404 without an injected header; no engine reached", answer, holds)


@each_case("form", ["upgrade", "h2c", "bare", "key", "with length", "chunked"])
async def test_no_request_bypasses_the_picker_as_an_upgrade(
    target: Attacked, judge: Judge, form: str
) -> None:
    key = b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n"
    upgrade = b"connection: upgrade\r\nupgrade: websocket\r\n"
    head = {
        "upgrade": b"GET /v1/realtime HTTP/1.1\r\nhost: a\r\n" + upgrade + key,
        "h2c": b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: h2c\r\n",
        "bare": b"GET /v1/realtime HTTP/1.1\r\nhost: a\r\n" + upgrade,
        "key": b"GET / HTTP/1.1\r\nhost: a\r\n" + key,
        "with length": b"GET / HTTP/1.1\r\nhost: a\r\n" + upgrade + key + b"content-length: 9\r\n",
        "chunked": b"GET / HTTP/1.1\r\nhost: a\r\n" + upgrade + key + CHUNKED,
    }[form]
    answer = await target.raw(head + b"\r\n" + SMUGGLED, wait_s=0.5)
    reached = [seen.line.decode() for seen in target.reached()]
    holds = not any("sleep" in line for line in reached)
    judge("no /sleep at an engine", f"{answer}; {reached}", holds)


DENIED = [
    "/sleep",
    "/sleep/",
    "//sleep",
    "/./sleep",
    "/v1/../sleep",
    "/v1/%2e%2e/sleep",
    "/v1/..%2fsleep",
    "/%73leep",
    "/%53leep",
    "/sl%65ep",
    "/sleep?level=1",
    "/sleep#x",
    "/sleep;a=b",
    "/sleep%20",
    "/sleep%00",
    "/sleep%0d%0a",
    "/sleep%2f",
    "/sleep%3flevel=1",
    "/%2fsleep",
    "/\\sleep",
    "/v1\\..\\sleep",
    "/SLEEP",
    "/v1/chat/completions/../../../sleep",
    "/v1/chat/completions/..;/..;/..;/sleep",
    "/%252e%252e/sleep",
    "/%2573leep",
    "/sleep/.",
    "/sleep/x/..",
    "/.//sleep",
    "http://a/sleep",
    "/wake_up",
    "/collective_rpc",
    "/reset_prefix_cache",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/update_weights",
]


OPERATORS = {path.encode() for path in DENIED if re.fullmatch(r"(/v1)?/[a-z_]+", path)}


@pytest.mark.parametrize("method", ["POST", "GET"])
@each_case("path", DENIED)
async def test_no_spelling_of_an_operator_path_reaches_an_engine(
    target: Attacked, judge: Judge, path: str, method: str
) -> None:
    """An engine unescapes a path once, and compares it case-sensitively."""
    start = f"{method} {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n"
    answer = await target.raw(start.encode("latin-1"))
    reached = [
        unquote_to_bytes(seen.line.split()[1].partition(b"?")[0]) for seen in target.reached()
    ]
    holds = answer.status in (200, 400, 403, 404) and not OPERATORS.intersection(reached)
    judge("no operators' path at an engine", f"{answer}; {reached}", holds)


CONTROL = [
    "x-gateway-destination-endpoint: {foreign}",
    "x-gateway-destination-endpoint-subset: {foreign}",
    "x-gateway-model-name-rewrite: " + "m-foreign",
    "x-gateway-inference-objective: -1000",
    "x-laar-pool: b",
    "x-laar-endpoint: {foreign}",
    "x-laar-decision: 0",
    "x-laar-priority: -1000",
    "x-laar-tried-models: m",
    "x-envoy-original-dst-host: {foreign}",
    "x-envoy-retry-on: 5xx",
    "x-envoy-upstream-alt-stat-name: x",
    "x-forwarded-host: {foreign}",
    "x-prefiller-host-port: {foreign}",
]


@each_case("header", CONTROL)
async def test_a_header_from_a_client_selects_no_endpoint(
    target: Attacked, judge: Judge, header: str
) -> None:
    name = header.partition(":")[0]
    line = header.format(foreign=target.foreign.address).encode()
    for _ in range(4):
        answer = await target.post(chat(model="auto"), line)
    at_engines = [value for seen in target.reached() for value in seen.header(name)]
    obeyed = name in ("x-gateway-destination-endpoint", "x-prefiller-host-port")
    holds = not target.foreign.seen
    holds &= not obeyed or target.foreign.address not in at_engines
    judge("nothing at the other pool's engine, no such address told", answer, holds)


POOL_ESCAPES = {
    "other model": chat(model="m-foreign"),
    "rewritten": chat(model="m-foreign"),
    "deep body": b'{"x":%b,"model":"m-foreign","messages":[]}' % (b"[" * 5000 + b"]" * 5000),
    "two models": b'{"model":"m","messages":[{"role":"user","content":"x"}],"model":"m-foreign"}',
    "escaped key": b'{"model":"m","m\\u006fdel":"m-foreign","messages":[]}',
    "no body": b"",
    "no JSON": b"{" * 50,
    "a list": b'["m-foreign"]',
    "300 kB": chat("y" * 300_000, model="m-foreign"),
    "deflate": b"x\x9c" + b"\0" * 60,
    "alias": chat(model="auto"),
    "null model": chat(model=None),
}


@each_case("trick", POOL_ESCAPES)
async def test_no_request_leaves_the_pool_of_its_route(
    target: Attacked, judge: Judge, trick: str
) -> None:
    headers = [b"x-gateway-model-name-rewrite: m-foreign"] if trick == "rewritten" else []
    if trick == "deflate":
        headers = [b"content-encoding: deflate"]
    answers = {str(await target.post(POOL_ESCAPES[trick], *headers)) for _ in range(6)}
    judge("0 requests at the other pool's engine", answers, not target.foreign.seen)
