"""Every class of path through Envoy, whether the picker reads or changes its bodies or not."""

from __future__ import annotations

import itertools
from io import BytesIO

import aiohttp
import orjson
import pytest
import yaml

from support import Answer
from support.grids import crossed

pytestmark = pytest.mark.envoy

SHAPES = ["sidecar", "standalone", "full-duplex"]
PATHS = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/chat/completions;x",
    "/v1/completions/",
    "/tokenize",
    "/v1/rerank",
    "/v1/score",
    "/pooling",
    "/v1/audio/transcriptions",
    "/v1/files",
]
PROMPT = {
    "messages": [{"role": "user", "content": "hello"}],
    "prompt": "hello",
    "input": "hello",
    "max_tokens": 5,
}


def manager(bootstrap):
    listener = bootstrap["static_resources"]["listeners"][0]
    return listener["filter_chains"][0]["filters"][0]["typed_config"]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("share_read", [0.0, 1.0])
async def test_each_path_reaches_an_endpoint_under_a_name_that_it_knows(
    gateway, http, shape, share_read
):
    upstream = await gateway.upstream()
    gateway.members((upstream.address, "m"))
    await gateway.picker(bodies={"sample_answers": share_read, "sample_every_s": 3600})
    envoy = await gateway.envoy(shape)

    async def chunked(body):
        yield body

    for path, model, in_chunks in itertools.product(PATHS, ("m", "auto"), (False, True)):
        body = orjson.dumps({"model": model, **PROMPT})
        data = chunked(body) if in_chunks else BytesIO(body)
        async with http.post(
            envoy.url() + path, data=data, headers={"content-type": "application/json"}
        ) as answer:
            assert (answer.status, await answer.read()) == (200, Answer().body), (
                path,
                model,
                in_chunks,
            )
            assert "x-laar-reason" in answer.headers, (path, model, in_chunks)
        sent = orjson.loads(upstream.asked[-1].body)
        spliced = path != "/v1/files"  # its bodies are never read
        assert sent["model"] == ("m" if spliced else model), (path, model, in_chunks)
        assert sent | {"model": ""} == PROMPT | {"model": ""}


async def ask_all(http, url, asked):
    """Send each request several times; assert that all are answered."""
    for _, (method, path, body) in itertools.product(range(6), asked):
        data = body() if callable(body) else body
        async with http.request(method, url + path, data=data) as answer:
            assert answer.status == 200, path
            await answer.read()


def two_names(gateway, *addresses_and_names, labels=()):
    """Write an endpoints file with engines of two kinds."""
    entries = [{"address": a, "models": [name]} for a, name in addresses_and_names]
    entries[-1]["labels"] = dict(labels)
    gateway.endpoints_file.write_text(yaml.safe_dump({"endpoints": entries}))


@pytest.mark.parametrize("shape", SHAPES)
async def test_requests_for_vectors_and_scores_go_to_engines_that_support_them(
    gateway, http, shape
):
    writes, encodes = await gateway.upstream(), await gateway.upstream()
    labels = {"laar.dev/task": "embed"}
    two_names(gateway, (writes.address, "llm"), (encodes.address, "emb"), labels=labels)
    await gateway.picker()
    envoy = await gateway.envoy(shape)
    paths = ("/rerank", "/v1/rerank", "/score", "/v1/score", "/pooling", "/classify", "/v2/embed")
    bodies = [orjson.dumps({"model": "auto", "input": "a"}), b'{"query":"q","documents":["d"]}']
    await ask_all(http, envoy.url(), [("POST", p, b) for p in paths for b in bodies])
    assert not writes.asked
    named = orjson.dumps({"model": "llm", "input": "a"})
    await ask_all(http, envoy.url(), [("POST", "/pooling", named)])
    assert {r.path for r in writes.asked} == {"/pooling"}


FILE = bytes(range(256)) * 5000


def audio(model):
    form = aiohttp.FormData()
    form.add_field("file", BytesIO(FILE), filename="a.wav")
    form.add_field("model", model)
    return form


@pytest.mark.parametrize("shape", SHAPES)
async def test_audio_images_and_speech_reach_the_model_that_they_name(gateway, http, shape):
    llm, whisper = await gateway.upstream(), await gateway.upstream()
    two_names(gateway, (llm.address, "llm"), (whisper.address, "org/whisper"))
    await gateway.picker(routing={"aliases": {"auto": [], "listens": ["org/whisper"]}})
    envoy = await gateway.envoy(shape)
    named = orjson.dumps({"model": "org/whisper", "input": "a", "prompt": "a"})
    asked = [
        ("POST", "/v1/audio/transcriptions", lambda: audio("org/whisper")),
        ("POST", "/v1/audio/transcriptions", lambda: audio("listens")),
        ("POST", "/v1/audio/speech", named),
        ("POST", "/v1/images/generations", named),
        ("GET", "/v1/models/org/whisper", None),
    ]
    await ask_all(http, envoy.url(), asked)
    for _ in range(6):
        async with http.ws_connect(f"{envoy.url()}/v1/realtime?model=org%2Fwhisper") as socket:
            await socket.send_str("a")
            assert await socket.receive_str() == "a"
    assert not llm.asked
    forms = [r for r in whisper.asked if r.path == "/v1/audio/transcriptions"]
    assert all(b'name="model"\r\n\r\norg/whisper\r\n' in r.body for r in forms)
    assert all(FILE + b"\r\n" in r.body for r in forms)


LIMIT = 100_000
BOUNDARY = "a-boundary"


def json_of(size):
    """Return a chat of `size` bytes that names its model last."""
    head, tail = b'{"messages":[{"role":"user","content":"', b'"}],"model":"right"}'
    return head + b"x" * (size - len(head) - len(tail)) + tail


def form_of(size):
    """Return a form of `size` bytes with its model after the file."""
    part = f"--{BOUNDARY}\r\ncontent-disposition: form-data; name=".encode()
    head = part + b'"file"; filename="a.wav"\r\n\r\n'
    tail = b"\r\n" + part + b'"model"\r\n\r\nright\r\n--' + BOUNDARY.encode() + b"--\r\n"
    return head + b"x" * (size - len(head) - len(tail)) + tail


@pytest.mark.parametrize("shape", SHAPES)
async def test_bodies_around_the_limit_reach_their_model_or_get_413(gateway, http, shape):
    right, wrong = await gateway.upstream(), await gateway.upstream()
    gateway.members((right.address, "right"), (wrong.address, "wrong"))
    await gateway.picker(bodies={"max_body_bytes": LIMIT})
    envoy = await gateway.envoy(shape, max_body_bytes=LIMIT)
    kinds = (
        ("/v1/chat/completions", "application/json", json_of),
        ("/tokenize", "application/json", json_of),
        ("/v1/audio/transcriptions", f"multipart/form-data; boundary={BOUNDARY}", form_of),
    )

    async def chunked(body):
        yield body

    for (path, kind, of), in_chunks, over in itertools.product(kinds, (False, True), (-1, 0, 1)):
        for _ in range(3):
            body = of(LIMIT + over)
            data = chunked(body) if in_chunks else BytesIO(body)
            headers = {"content-type": kind, "connection": "close"}
            async with http.post(envoy.url() + path, data=data, headers=headers) as answer:
                seen = (answer.status, answer.headers.get("x-laar-reason"))
                expected = (200, None) if over < 1 else (413, "body-too-large")
                assert seen[0] == expected[0], (path, in_chunks, over, seen)
                assert over < 1 or seen == expected, (path, in_chunks, over)
    assert not wrong.asked


def form_behind(parts, heading_bytes=0):
    """Return a form with `parts` files before the model; the first has a header of given length."""
    opening = f"--{BOUNDARY}\r\n".encode()
    file = b'content-disposition: form-data; name="file"; filename="a.wav"\r\n\r\nx\r\n'
    long = opening + b"x-long: " + b"x" * heading_bytes + b"\r\n" + file
    model = opening + b'content-disposition: form-data; name="model"\r\n\r\nright\r\n'
    return long + (opening + file) * (parts - 1) + model + f"--{BOUNDARY}--\r\n".encode()


@pytest.mark.parametrize("shape", SHAPES)
async def test_forms_whose_model_cannot_be_read_reach_no_engine(gateway, http, shape):
    right, wrong = await gateway.upstream(), await gateway.upstream()
    gateway.members((right.address, "right"), (wrong.address, "wrong"))
    await gateway.picker()
    envoy = await gateway.envoy(shape)
    cases = (
        (form_behind(20, 3900), 200),
        (form_behind(99), 200),
        (form_behind(100), 400),
        (form_behind(5000), 400),
        (form_behind(1, 5000), 400),
        (b"\r\n" + form_behind(1), 200),
        (form_behind(1).replace(b"\r\nx\r\n", f"\r\n\r\n--{BOUNDARY}x\r\n".encode()), 400),
    )
    headers = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
    for (number, (body, status)), _ in itertools.product(enumerate(cases), range(3)):
        url = envoy.url() + "/v1/audio/transcriptions"
        async with http.post(url, data=BytesIO(body), headers=headers) as answer:
            assert answer.status == status, number
            if status == 400:
                assert answer.headers["x-laar-reason"] == "bad-request"
                assert "the form can't be read" in (await answer.json())["error"]["message"]
    assert not wrong.asked
    assert len(right.asked) == 9


@pytest.mark.parametrize("shape", SHAPES)
async def test_an_earlier_filter_may_answer_instead_of_the_picker(gateway, http, shape):
    """Authentication or a rate limit answers before the picker sees the request."""
    upstream = await gateway.upstream()
    gateway.members((upstream.address, "m"))
    await gateway.picker()
    url = "type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault"
    fault = {
        "@type": url,
        "abort": {"http_status": 401, "percentage": {"numerator": 100}},
        "headers": [{"name": "x-abort", "present_match": True}],
    }

    def refuse(bootstrap):
        entry = {"name": "envoy.filters.http.fault", "typed_config": fault}
        manager(bootstrap)["http_filters"].insert(0, entry)

    envoy = await gateway.envoy(shape, refuse)
    body = orjson.dumps({"model": "m", **PROMPT})
    for headers, status in (({"x-abort": "1"}, 401), ({}, 200), ({"x-abort": "1"}, 401)):
        async with http.post(
            envoy.url() + "/v1/chat/completions", data=BytesIO(body), headers=headers
        ) as answer:
            assert answer.status == status
            assert await answer.read()
    assert len(upstream.asked) == 1


FORGED = {
    "x-gateway-destination-endpoint-subset": "10.0.0.1:80",
    "x-prefiller-host-port": "10.0.0.1:80",
    "x-encoder-hosts-ports": "10.0.0.1:80",
    "x-data-parallel-host-port": "10.0.0.1:80",
    "x-data-parallel-rank": "1",
    "x-vllm-priority": "-1000",
    "x-kv-cache-source-host-port": "10.0.0.1:80",
    "x-prefiller-url": "http://10.0.0.1",
    "x-override-bootstrap-host": "10.0.0.1",
}
PEER = "___prefill_addr_10.0.0.1:80___decode_addr_10.0.0.2:80_a"


@pytest.mark.parametrize(
    ("shape", "trust", "model"),
    [
        ("standalone", None, "m"),
        ("gateway", None, "m"),
        ("sidecar", None, "other"),
        ("standalone", True, "other"),
        ("gateway", True, "other"),
        ("sidecar", False, "m"),
    ],
)
async def test_clients_cannot_forge_what_a_gateway_asserts_about_them(
    gateway, http, shape, trust, model
):
    upstream = await gateway.upstream()
    gateway.members((upstream.address, "m", "other"))
    await gateway.picker()
    envoy = await gateway.envoy(shape, trust_gateway_headers=trust)
    headers = {**FORGED, "x-gateway-model-name-rewrite": "other"}
    body = orjson.dumps({"model": "m", **PROMPT})
    async with http.post(
        envoy.url() + "/v1/chat/completions", data=BytesIO(body), headers=headers
    ) as answer:
        assert answer.status == 200
    (request,) = upstream.asked
    assert orjson.loads(request.body)["model"] == model
    assert not set(headers) & set(request.headers)
    for named in (
        {"headers": {"x-request-id": PEER}},
        {"body": {"kv_transfer_params": {"a": "b"}}},
    ):
        body = orjson.dumps({"model": "m", **PROMPT, **named.get("body", {})})
        for path in ("/v1/chat/completions", "/generate"):
            async with http.post(
                envoy.url() + path, data=BytesIO(body), headers=named.get("headers")
            ) as answer:
                assert answer.status == 400
                assert (await answer.json())["error"]["code"] == "denied-member"
    assert len(upstream.asked) == 1


@pytest.mark.parametrize(
    ("shape", "answers"), crossed(["standalone", "sidecar", "gateway"], ["all", "none"])
)
async def test_an_engine_cannot_send_headers_of_the_picker(gateway, http, shape, answers):
    own = ("decision-id", "model", "endpoint", "reason", "cost-ms", "mode", "exhausted", "any")
    names = [f"x-laar-{name}" for name in (*own, "tried-models", "since")]
    names += ["x-gateway-destination-endpoint-served", "x-conformance-test-served-endpoint"]
    names += ["x-envoy-overloaded", "x-envoy-immediate-health-check-fail", "x_envoy_ratelimited"]
    names += ["x_laar_model", "x-laar_endpoint", "x_gateway_destination_endpoint_served"]
    upstream = await gateway.upstream()
    upstream.default_answer = Answer(headers={**dict.fromkeys(names, "forged"), "x-engine": "e"})
    gateway.members((upstream.address, "m"))
    await gateway.picker(headers={"answers": answers})
    envoy = await gateway.envoy(shape)
    for path in ("/v1/chat/completions", "/tokenize", "/version"):
        url = envoy.url() + path
        body = None if path == "/version" else BytesIO(orjson.dumps({"model": "m", **PROMPT}))
        async with http.request("GET" if body is None else "POST", url, data=body) as answer:
            assert (answer.status, answer.headers["x-engine"]) == (200, "e"), path
            assert "forged" not in answer.headers.values(), path
