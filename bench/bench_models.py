"""Check that requests are only answered by endpoints that serve the requested model.

Random requests of every API that laar knows, in every encoding that a client or an attacker might
use and with sizes around each limit, pass through a real Envoy in all shapes. The engines accept
any model name: they always answer 200, and report the model that they read from the body. A request
is wrong if the status is 2xx and the endpoint does not serve the model that the client meant, or
the one that the engine read. It may be refused for any reason.

With `--alone`, the pickers end first, and Envoy alone answers.

    python -m bench models
    python -m bench models --cases 2000 --shapes gateway --seed 7

Exit status: 0 if no request was wrong, 3 if one was.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.parser import BytesParser
from email.policy import HTTP
from typing import NamedTuple

from bench.chaos.stand import Endpoint, Plan, Stand, standing
from bench.figures import MISSED
from bench.options import count, names_of, parser_for
from laar_lab.live.bootstraps import AnyShape

MODELS = ("alpha", "beta", "alpha-lora")
SERVED: tuple[tuple[str, ...], ...] = (("alpha",), ("beta",), ("alpha", "alpha-lora"), ("beta",))
LIMIT_BYTES = 1 << 20
"""Maximum body size of these pickers; small, so that bodies around it are cheap."""
CUTS_BYTES = (1 << 12, 1 << 14, 1 << 16, LIMIT_BYTES, 2 * LIMIT_BYTES)
SHAPES: dict[str, AnyShape] = {
    "standalone": "standalone",
    "sidecar": "sidecar",
    "gateway": "gateway",
    "full duplex": "full-duplex",
}
CLIENTS = 16
PATIENCE_S = 20.0
JSON_PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/responses",
    "/v1/rerank",
    "/v1/score",
    "/v1/audio/speech",
    "/v1/images/generations",
    "/inference/v1/generate",
    "/classify",
    "/invocations",
    "/pooling",
    "/tokenize",
)
FORM_PATHS = ("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/images/edits")
_HEAD_LIMIT_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class Case:
    """A request as bytes.

    Args:
        name: what is unusual about the request, for display.
        meant: model that the client means; None if ambiguous.
        head: request line and headers, except those for the body's length.
        body: the body.
        pieces: chunk boundaries of the body; None to send content-length.
    """

    name: str
    meant: str | None
    head: bytes
    body: bytes
    pieces: tuple[int, ...] | None = None

    def parts(self) -> list[bytes]:
        """Return the chunks to send, in order."""
        if self.pieces is None:
            return [self.head + b"content-length: %d\r\n\r\n" % len(self.body), self.body]
        parts, at = [self.head + b"transfer-encoding: chunked\r\n\r\n"], 0
        for cut in (*self.pieces, len(self.body)):
            if cut > at:
                parts.append(b"%x\r\n%s\r\n" % (cut - at, self.body[at:cut]))
                at = cut
        return [*parts, b"0\r\n\r\n"]


# -- bodies ------------------------------------------------------------------------------------


def _fields(model: object, pad_bytes: int) -> dict[str, object]:
    text = "x" * pad_bytes
    return {"model": model, "messages": [{"role": "user", "content": text}], "prompt": "p"}


def _pad(body: bytes, size: int, at: bytes = b"") -> bytes:
    """Pad a JSON object to `size` bytes with white space before its end."""
    return body[:-1] + b" " * max(0, size - len(body)) + body[-1:] + at


Build = Callable[[str, str, random.Random, int], tuple[str | None, bytes]]
"""Function of a model, another model, a random generator and a size; returns model meant and
body."""


def _escaped(text: str) -> str:
    return '"' + "".join(f"\\u{ord(c):04x}" for c in text) + '"'


BUILDS: dict[str, Build] = {
    "model first": lambda m, _o, _r, n: (m, json.dumps(_fields(m, n)).encode()),
    "model last": lambda m, _o, _r, n: (
        m,
        json.dumps(dict(reversed(_fields(m, n).items()))).encode(),
    ),
    "white space": lambda m, _o, _r, n: (
        m,
        _pad(json.dumps(_fields(m, 1), indent=3).replace(":", " \t:\n").encode(), n),
    ),
    "escaped key": lambda m, _o, _r, n: (
        m,
        b'{"a":"%s",%s:%s}' % (b"x" * n, _escaped("model").encode(), json.dumps(m).encode()),
    ),
    "escaped value": lambda m, _o, _r, n: (
        m,
        b'{"a":"%s","model":%s}' % (b"x" * n, _escaped(m).encode()),
    ),
    "two keys": lambda m, o, _r, n: (
        m,
        b'{"model":"%s","a":"%s","model":"%s"}' % (o.encode(), b"x" * n, m.encode()),
    ),
    "two keys, one escaped": lambda m, o, _r, n: (
        m,
        b'{"model":"%s","a":"%s",%s:"%s"}'
        % (o.encode(), b"x" * n, _escaped("model").encode(), m.encode()),
    ),
    "a decoy inside": lambda m, o, _r, n: (
        m,
        b'{"a":{"model":"%s"},"b":"\\"model\\":\\"%s\\" %s","model":"%s","c":[{"model":"%s"}]}'
        % (o.encode(), o.encode(), b"x" * n, m.encode(), o.encode()),
    ),
    "another case": lambda m, o, _r, n: (
        m,
        b'{"Model":"%s","MODEL":"%s","a":"%s","model":"%s"}'
        % (o.encode(), o.encode(), b"x" * n, m.encode()),
    ),
    "byte order mark": lambda m, _o, _r, n: (
        m,
        b"\xef\xbb\xbf" + json.dumps(_fields(m, n)).encode(),
    ),
    "UTF-16": lambda m, _o, _r, n: (m, json.dumps(_fields(m, n)).encode("utf-16")),
    "gzip": lambda m, _o, _r, n: (m, gzip.compress(json.dumps(_fields(m, n)).encode())),
    "a second document": lambda m, o, _r, n: (
        None,
        json.dumps(_fields(m, n)).encode() + json.dumps(_fields(o, 1)).encode(),
    ),
    "bad UTF-8": lambda m, _o, _r, n: (
        None,
        b'{"a":"\xff%s","model":"%s"}' % (b"x" * n, m.encode()),
    ),
    "a list": lambda m, _o, _r, n: (None, json.dumps([_fields(m, n)]).encode()),
    "no text": lambda m, _o, r, n: (
        None,
        json.dumps(_fields(r.choice([None, 3, [m], {"name": m}, "", True]), n)).encode(),
    ),
    "white space in the name": lambda m, _o, r, n: (
        None,
        json.dumps(_fields(r.choice([m + " ", " " + m, m + "\0", m.upper()]), n)).encode(),
    ),
    "unknown": lambda _m, _o, _r, n: ("gamma", json.dumps(_fields("gamma", n)).encode()),
    "none": lambda _m, _o, _r, n: (None, json.dumps({"prompt": "x" * n}).encode()),
    "empty": lambda _m, _o, _r, _n: (None, b""),
    "cut": lambda m, _o, r, n: (
        None,
        (whole := json.dumps(_fields(m, n)).encode())[: r.randrange(1, len(whole))],
    ),
}


def _part(name: str, value: bytes, file: bool = False, quoted: bool = True) -> bytes:
    named = f'name="{name}"' if quoted else f"name={name}"
    more = '; filename="f.wav"\r\nContent-Type: audio/wav' if file else ""
    return f"Content-Disposition: form-data; {named}{more}\r\n\r\n".encode() + value


def _form(
    model: str, other: str, rng: random.Random, size: int
) -> tuple[str, str | None, bytes, bytes]:
    """Return what is odd about a form, the model meant, the content type and the body."""
    boundary = rng.choice([b"b", b"----WebKitFormBoundaryAbC1", b"x" * 70, b"a'(b)+_,-./:=?"])
    odd = rng.choice(["model first", "model last", "two", "unquoted", "a decoy", "as file", "none"])
    file = _part("file", b"R" * size, file=True)
    own = _part("model", model.encode(), quoted=odd != "unquoted", file=odd == "as file")
    parts = [file, own] if odd == "model last" else [own, file]
    meant: str | None = model
    if odd == "two":
        parts, meant = [_part("model", other.encode()), file, own], None
    elif odd == "a decoy":
        decoy = b'\r\n--c\r\nContent-Disposition: form-data; name="model"\r\n\r\n' + other.encode()
        parts = [_part("prompt", decoy), file, own]
    elif odd == "none":
        parts, meant = [file], None
    elif odd == "as file":
        meant = None
    body = b"".join(b"--" + boundary + b"\r\n" + part + b"\r\n" for part in parts)
    kind = b'multipart/form-data; boundary="%s"' % boundary
    return odd, meant, kind, body + b"--" + boundary + b"--\r\n"


def make(rng: random.Random, *, trusted: bool = False) -> Case:
    """Return a random request; a `trusted` client (in a sidecar) may rewrite its model."""
    model = rng.choice(MODELS)
    other = rng.choice([each for each in MODELS if each != model])
    size = rng.randrange(300)
    if rng.random() < 0.08:
        cut = rng.choice(CUTS_BYTES if rng.random() < 0.3 else CUTS_BYTES[:3])
        size = max(0, cut + rng.choice([-400, -120, -90, -60, -30, -2, -1, 0, 1, 2, 60]))
    if rng.random() < 0.2:
        path = rng.choice(FORM_PATHS)
        odd, meant, kind, body = _form(model, other, rng, size)
        name = f"form, {odd}"
    else:
        path, name = rng.choice(JSON_PATHS), rng.choice(list(BUILDS))
        meant, body = BUILDS[name](model, other, rng, size)
        kind = rng.choice(
            [b"application/json"] * 8
            + [b"application/json; charset=utf-8", b"", b"text/plain", b"application/x-ndjson"]
        )
    lines = [b"host: a"] + ([b"content-type: " + kind] if kind else [])
    if name == "gzip":
        lines.append(b"content-encoding: gzip")
    if rng.random() < 0.15:
        lines.append(_lie(other, rng))
        meant = None if trusted and b"-rewrite" in lines[-1] else meant
        name += ", " + lines[-1].partition(b":")[0].decode()
    if rng.random() < 0.1:
        path += rng.choice(["?model=" + other, "/", "?", ";model=" + other, "?stream=true"])
    if rng.random() < 0.03:
        path = rng.choice(["//v1/chat/completions", "/v1/../v1/completions", "/V1/completions"])
    pieces = None
    if rng.random() < 0.3:
        count = rng.choice([0, 1, 2, 7])
        pieces = tuple(sorted(rng.randrange(len(body) + 1) for _ in range(count)))
    head = b"POST %s HTTP/1.1\r\n" % path.encode() + b"".join(line + b"\r\n" for line in lines)
    return Case(f"{path}: {name}, {len(body)} bytes", meant, head, body, pieces)


def _lie(other: str, rng: random.Random) -> bytes:
    """Return a header that names another model or endpoint."""
    value = other.encode()
    return rng.choice(
        [
            b"x-laar-model: " + value,
            b"x-gateway-model-name: " + value,
            b"x-gateway-model-name-rewrite: " + value,
            b"x-gateway-destination-endpoint: 127.0.0.1:1",
            b"x-gateway-destination-endpoint-subset: 127.0.0.1:1",
            b"x-original-path: /v1/models",
            b"x-envoy-original-path: /tokenize",
            b"x-http-method-override: GET",
            b"content-disposition: form-data; name=model",
            b"expect: 100-continue",
            b"x-laar-decision-id: 1",
        ]
    )


# -- engines -----------------------------------------------------------------------------------


def read_model(kind: str, body: bytes) -> str | None:
    """Return the model that an engine reads from a body; None if there is none."""
    if kind.startswith("multipart/"):
        parsed = BytesParser(policy=HTTP).parsebytes(
            b"content-type: " + kind.encode() + b"\r\n\r\n" + body
        )
        found = None
        for part in parsed.iter_parts() if parsed.is_multipart() else ():
            named = part.get_param("name", header="content-disposition") == "model"
            if named and part.get_filename() is None:
                payload = part.get_payload(decode=True)
                assert isinstance(payload, bytes)  # true of a part that is not itself multipart
                found = payload.decode("utf-8", "replace").strip("\r\n")
        return found
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    model = document.get("model") if isinstance(document, dict) else None
    return model if isinstance(model, str) and model else None  # vLLM treats "" as missing


class Engine:
    """An engine that always answers 200, and records the name it read."""

    def __init__(self, address: str, served: tuple[str, ...]) -> None:
        self._address = address
        self._served = served
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Start listening."""
        host, _, port = self._address.rpartition(":")
        self._server = await asyncio.start_server(
            self._accept, host, int(port), limit=_HEAD_LIMIT_BYTES
        )

    def stop(self) -> None:
        """Stop accepting connections."""
        assert self._server is not None
        self._server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            while True:
                head, body = await read_message(reader)
                kind = re.search(rb"(?im)^content-type: *([^\r\n]*)", head)
                asked = read_model(kind[1].decode("latin-1") if kind else "", body)
                writer.write(self._answer(head, asked))
                await writer.drain()
        writer.close()

    def _answer(self, head: bytes, asked: str | None) -> bytes:
        if head.startswith(b"GET "):
            document: dict[str, object] = {"data": [{"id": name} for name in self._served]}
        else:
            choice = {"index": 0, "text": "yes", "message": {"content": "yes"}}
            document = {
                "model": asked or self._served[0],
                "choices": [{**choice, "finish_reason": "stop"}],
                "content": [{"type": "text", "text": "yes"}],
                "output": [{"type": "message", "content": [{"text": "yes"}]}],
                "data": [{"index": 0, "embedding": [0.5]}],
                "results": [{"index": 0, "relevance_score": 0.5}],
                "text": "yes",
            }
        body = json.dumps(document).encode()
        names = (json.dumps(self._served).encode(), json.dumps(asked).encode())
        return (
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
            b"x-served: %s\r\nx-asked: %s\r\n" % names
        ) + b"content-length: %d\r\n\r\n%s" % (len(body), body)


async def read_message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Read a request or an answer; return its headers and its body."""
    head = await reader.readuntil(b"\r\n\r\n")
    if length := re.search(rb"(?im)^content-length: *(\d+)", head):
        return head, await reader.readexactly(int(length[1]))
    body = b""
    if b"transfer-encoding: chunked" in head.lower():
        while size := int((await reader.readline()).split(b";")[0] or b"0", 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
    return head, body


# -- the run -----------------------------------------------------------------------------------


class Found(NamedTuple):
    """The results of one shape."""

    ends: Counter[str]
    wrong: list[str]


async def measure(shape: str, cases: int, seed: int, *, alone: bool = False) -> Found:
    """Send random requests through one shape, with a picker or not, and judge the answers."""
    plan = Plan(
        endpoints=tuple(Endpoint(model=s[0], names=s, known=s) for s in SERVED),
        shape=SHAPES[shape],
        engines=None,
        settings={"bodies": {"max_body_bytes": LIMIT_BYTES}},
    )
    engines: list[Engine] = []

    async def start(stand: Stand) -> None:
        for address, served in zip(stand.addresses, SERVED, strict=True):
            engines.append(Engine(address, served))
            await engines[-1].start()

    found = Found(Counter(), [])
    async with standing(plan, deadline_s=60.0 + cases, before=start) as stand:
        for picker in stand.pickers if alone else ():
            await picker.end()
        rng = random.Random(seed)
        todo = iter([rng.getrandbits(64) for _ in range(cases)])
        port = int(stand.url.rpartition(":")[2])
        await asyncio.gather(
            *(_client(port, todo, found, shape == "sidecar") for _ in range(CLIENTS))
        )
        for engine in engines:
            engine.stop()
    return found


async def _client(port: int, todo: Iterator[int], found: Found, trusted: bool) -> None:
    reader, writer = None, None
    for number in todo:
        case = make(random.Random(number), trusted=trusted)
        if reader is None or writer is None:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, limit=_HEAD_LIMIT_BYTES
            )
        head = b""
        with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                head = await _ask(case, reader, writer)
        end, wrong = judge(case, head)
        found.ends[end] += 1
        if wrong:
            found.wrong.append(f"{number}: {case.name}: {wrong}")
        if not head.startswith(b"HTTP/1.1 200"):  # Envoy may close, or not read everything
            writer.close()
            writer = None
    if writer is not None:
        writer.close()


async def _ask(case: Case, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    with suppress(OSError):  # an early refusal can still be read
        for part in case.parts():
            writer.write(part)
            await writer.drain()
    while True:
        head, _ = await read_message(reader)
        if not head.startswith(b"HTTP/1.1 1"):
            return head


def judge(case: Case, head: bytes) -> tuple[str, str]:
    """Return the outcome of a request, and the error in it; empty if there is none."""
    if not head:
        return "no answer", ""
    status = int(head.split(b" ", 2)[1])
    if not 200 <= status < 300:
        return str(status), ""
    served = re.search(rb"(?im)^x-served: *([^\r\n]*)", head)
    if served is None:
        return f"{status} of the picker", ""
    asked = re.search(rb"(?im)^x-asked: *([^\r\n]*)", head)
    names, read = json.loads(served[1]), json.loads(asked[1]) if asked else None
    for what, model in (("the client meant", case.meant), ("the engine read", read)):
        if model is not None and model not in names:
            return f"{status} wrong", f"{what} {model}, {names} answered"
    return str(status), ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run and print; return 3 if a request was wrong."""
    parser = parser_for("models", __doc__)
    parser.add_argument("--cases", type=count, default=100_000, help="total over all shapes")
    parser.add_argument("--shapes", type=names_of(SHAPES), default=",".join(SHAPES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--alone", action="store_true", help="without a picker")
    options = parser.parse_args(argv)
    shapes, wrong = options.shapes, 0
    for shape in shapes:
        found = asyncio.run(
            measure(shape, options.cases // len(shapes), options.seed, alone=options.alone)
        )
        print(f"{shape}: {dict(found.ends.most_common())}, {len(found.wrong)} wrong", flush=True)
        for line in found.wrong[:20]:
            print("   ", line)
        wrong += len(found.wrong)
    print(f"{wrong} of {options.cases} answered by a model other than the requested one")
    return MISSED if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
