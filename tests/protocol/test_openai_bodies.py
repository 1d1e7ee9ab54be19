"""Reading request bodies, refusing invalid ones, and splicing in the model's name."""

import base64
import json
import random
import zlib

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar.errors import RequestError
from laar.prefix.templates import Template
from laar.protocol.openai import read_body
from laar.protocol.paths import api_of, model_of
from laar.protocol.splice import splice_model
from laar.protocol.urls import is_data
from laar.request import Api
from support.exploring import examples

KEYS = st.text(min_size=0, max_size=6) | st.sampled_from(["model", "messages", 'mo"del', "\\model"])
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(max_size=8)
    | st.just('"model": "x"'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("path", "api"),
    [
        ("/v1/chat/completions", Api.CHAT),
        ("/openai/v1/completions?x=1", Api.COMPLETIONS),
        ("/v1/responses/", Api.RESPONSES),
        ("/v1/embeddings", Api.EMBEDDINGS),
        ("/v1/messages", Api.MESSAGES),
        ("/v1/chat/%63ompletions", Api.CHAT),
        ("/v1%2Fcompletions/?%3F", Api.COMPLETIONS),
        ("/v1/chat/%zz", Api.OPAQUE),
        ("/invocations", Api.CHAT),
        ("/inference/v1/generate", Api.COMPLETIONS),
        ("/generate", Api.OTHER),
        ("/tokenize", Api.OPAQUE),
        ("/", Api.OPAQUE),
    ],
)
def test_the_path_determines_the_format_of_a_body(path, api):
    assert api_of(path) is api


def test_a_chat_body_yields_model_texts_question_and_limits():
    body = read_body(
        Api.CHAT,
        orjson.dumps(
            {
                "model": "m",
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": [{"type": "text", "text": "What is this?"}]},
                ],
                "stream": True,
                "max_tokens": 7,
                "cache_salt": "s",
            }
        ),
    )
    assert (body.model, body.question, body.stream, body.max_tokens, body.salt) == (
        "m",
        "What is this?",
        True,
        7,
        "s",
    )
    assert "Be brief." in body.spans


@pytest.mark.parametrize(
    ("api", "document", "question"),
    [
        (Api.COMPLETIONS, {"prompt": "once"}, "once"),
        (Api.COMPLETIONS, {"prompt": [1, 2, 3]}, ""),
        (Api.EMBEDDINGS, {"input": ["a", "b"]}, "b"),
        (Api.RESPONSES, {"input": "hello"}, "hello"),
        (
            Api.RESPONSES,
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]},
            "hi",
        ),
        (
            Api.MESSAGES,
            {"messages": [{"role": "user", "content": "salut"}], "system": "s"},
            "salut",
        ),
    ],
)
def test_the_users_question_is_found_in_every_format(api, document, question):
    assert read_body(api, orjson.dumps({"model": "m", **document})).question == question


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ([5, 60_000, 7], 3),
        ([[1, 2], [3]], 3),
        ("1, 2", 0),
        (["a"], 0),
        ([1, "a"], 0),
        ([[1], 2], 0),
        ([1.5], 0),
    ],
)
def test_token_ids_are_counted(prompt, tokens):
    body = orjson.dumps({"model": "m", "prompt": prompt})
    assert read_body(Api.COMPLETIONS, body).tokens == tokens


@pytest.mark.parametrize("sampling", [{"max_tokens": 7}, {}, None, [1], {"sampling_params": {}}])
def test_a_generate_request_yields_token_ids_and_limit(sampling):
    body = {"model": "m", "token_ids": [5, 60_000, 7], "sampling_params": sampling}
    read = read_body(Api.COMPLETIONS, orjson.dumps(body))
    same = read_body(Api.COMPLETIONS, orjson.dumps({"model": "m", "prompt": [5, 60_000, 7]}))
    assert (read.tokens, read.spans) == (3, same.spans)
    assert read.max_tokens == (7 if sampling == {"max_tokens": 7} else None)


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"max_completion_tokens": None, "max_tokens": 100}, 100),
        ({"max_completion_tokens": 7, "max_tokens": 100}, 7),
        ({"max_tokens": None, "max_output_tokens": 9}, 9),
        ({"max_tokens": None}, None),
        ({"max_tokens": True}, None),
        ({"max_tokens": 0}, None),
        ({"max_tokens": "9"}, 9),
        ({"max_tokens": 9.0}, 9),
        ({"n_predict": -1}, None),
        ({"max_new_tokens": 9}, 9),
    ],
)
def test_the_first_limit_that_is_set_counts(fields, limit):
    messages = [{"role": "user", "content": "q"}]
    body = orjson.dumps({"model": "m", "messages": messages, **fields})
    assert read_body(Api.CHAT, body).max_tokens == limit


@pytest.mark.parametrize("text", ["q", "q" * 70_000, "q\ud800"], ids=["short", "long", "lone"])
@pytest.mark.parametrize(
    ("sampling", "fixed"),
    [
        ({}, False),
        ({"temperature": 0}, True),
        ({"temperature": 0.0, "seed": None}, True),
        ({"temperature": None, "top_k": -1}, False),
        ({"temperature": 0.7, "top_p": 1}, False),
        ({"temperature": 1, "top_k": 1}, True),
        ({"temperature": 1, "seed": 0}, True),
        ({"temperature": [0], "seed": None}, False),
    ],
)
def test_a_body_shows_whether_its_answer_is_reproducible(text, sampling, fixed):
    message = {"role": "user", "content": text}
    body = json.dumps({"model": "m", "messages": [message], **sampling}).encode()
    assert read_body(Api.CHAT, body).reproducible == fixed
    inner = json.dumps({"model": "m", "token_ids": [1], "sampling_params": sampling}).encode()
    assert read_body(Api.COMPLETIONS, inner).reproducible == fixed


@pytest.mark.parametrize(
    ("given", "share"),
    [
        ("one text", 1.0),
        (["one text"], 1.0),
        (["ab", "abcdef"], 0.75),
        (["é", "abcdef"], 0.75),
        ([1, 2, 3], 1.0),
        ([[1], [2, 3, 4]], 0.75),
        ([""], 1.0),
        ([[]], 0.0),
    ],
)
def test_a_batch_is_as_long_as_its_longest_text(given, share):
    for api, key in ((Api.EMBEDDINGS, "input"), (Api.COMPLETIONS, "prompt")):
        assert read_body(api, orjson.dumps({"model": "m", key: given})).longest_share == share


IMAGE = {"type": "image_url", "image_url": {"url": "data:a"}}


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": [{"type": "text", "text": "Which bird?"}, IMAGE, IMAGE]}],
        [{"role": "user", "content": "Which bird?"}, {"role": "user", "content": [IMAGE]}],
    ],
)
def test_the_question_is_the_last_text_and_not_an_image(messages):
    body = read_body(Api.CHAT, orjson.dumps({"model": "m", "messages": messages}))
    assert body.question == "Which bird?"
    assert any(span.startswith("\x1d") for span in body.spans)


def test_the_models_reasoning_is_part_of_the_prompt_but_not_the_question():
    given = [
        {"type": "message", "role": "user", "content": "Which bird?"},
        {
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Let me think."}],
        },
        {"type": "function_call_output", "call_id": "c", "output": "a wren"},
    ]
    body = read_body(Api.RESPONSES, orjson.dumps({"model": "m", "input": given}))
    assert body.question == "Which bird?"
    assert "<think>\nLet me think.\n</think>\n\n" in body.spans
    assert any("a wren" in span for span in body.spans)


def conversation(api, *, follow_up):
    """Return a body in which the model thinks and calls a tool; then the user may ask again."""
    thoughts, user = "I should look. " * 20, {"role": "user", "content": "Which bird?"}
    used = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
    results = [{"type": "tool_result", "tool_use_id": "c", "content": "a wren"}]
    called = {"role": "assistant", "content": "", "reasoning_content": thoughts}
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = {
        "chat": [
            called | {"tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "a wren"},
        ],
        "messages": [
            {"role": "assistant", "content": [{"type": "thinking", "thinking": thoughts}, used]},
            {"role": "user", "content": results},
        ],
        "responses": [
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": thoughts}]},
            {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "a wren"},
        ],
    }
    given = [user, *messages[api], *[{"role": "user", "content": "Why?"}] * follow_up]
    return orjson.dumps({"model": "m", "input" if api == "responses" else "messages": given})


@pytest.mark.parametrize("api", [Api.CHAT, Api.MESSAGES, Api.RESPONSES])
def test_reasoning_is_in_the_prompt_until_the_user_asks_again(api):
    for follow_up, question in ((False, "Which bird?"), (True, "Why?")):
        body = read_body(api, conversation(api, follow_up=follow_up))
        prompt = "".join(Template().arranged(body.spans))
        assert prompt.count("I should look.") == (0 if follow_up else 20)
        assert "a wren" in prompt
        assert body.question == question
        assert "\x1d" not in prompt  # nothing is taken for an image


BYTES = st.integers(2_000, 20_000).map(lambda size: random.Random(size).randbytes(size))
DATA = st.builds(
    lambda begin, write, data: begin + write(data).decode(),
    st.sampled_from(["", "data:image/png;base64,", "data:audio/wav;base64,", "data:;base64,"]),
    st.sampled_from([base64.b64encode, base64.urlsafe_b64encode, base64.encodebytes]),
    BYTES,
)
SAID = ["a", "wren", "sang", "é", "\n", "of", "12"]
WORDS = st.integers(400, 4000).map(
    lambda count: " ".join(random.Random(count).choices(SAID, k=count))
)
NAMES = st.sampled_from(
    ["call", "output", "result", "url", "data", "source", "part", "image", "log", "x"]
)
NESTED = st.recursive(
    st.just("HERE"),
    lambda inner: (
        st.builds(lambda name, of: {name: of}, NAMES, inner) | st.builds(lambda of: [of], inner)
    ),
    max_leaves=3,
)


@given(DATA, WORDS, NESTED, st.sampled_from(["image_generation", "code_interpreter", "new"]))
@settings(max_examples=examples(100), deadline=None)
def test_what_is_data_in_an_item_counts_as_a_medium_and_all_else_as_text(data, words, form, kind):
    def read(said):
        form_of = orjson.loads(orjson.dumps(form).replace(b'"HERE"', orjson.dumps(said)))
        item = {"type": f"{kind}_call", "id": "x", "code": "print(1)", "field": form_of}
        return read_body(Api.RESPONSES, orjson.dumps({"model": "m", "input": [item]}))

    assert read(data).chars < 3000  # counts as some hundred tokens
    assert read(data).spans == read(data).spans != read(data.replace("A", "B")).spans
    assert read(words).chars >= len(words)


PARTS = {  # of a batch of embeddings, or of what a reranker compares
    "string": lambda said: said,
    "text or image": lambda said: {"image" if is_data(said) else "text": said},
    "content": lambda said: {"content": [PARTS["typed"](said)]},
    "typed": lambda said: (
        {"type": "image_url", "image_url": {"url": said}}
        if is_data(said)
        else {"type": "text", "text": said}
    ),
}
BATCHES = {
    "/v1/embeddings": lambda first, rest: {"input": [first, *rest]},
    "/embed": lambda first, rest: {"inputs": [first, *rest], "truncate": True},
    "/v2/embed": lambda first, rest: {"texts": [first, *rest], "input_type": "x"},
    "/v1/rerank": lambda first, rest: {"query": first, "documents": rest, "top_n": 3},
    "/rerank": lambda first, rest: {"query": first, "texts": rest},
    "/score": lambda first, rest: {"text_1": first, "text_2": rest},
    "/v1/score": lambda first, rest: {"query": first, "items": rest},
}


@given(
    first=DATA | WORDS,
    rest=st.lists(DATA | WORDS, min_size=1, max_size=4),
    part=st.sampled_from([*PARTS.values()]),
    path=st.sampled_from([*BATCHES]),
)
@settings(max_examples=examples(150), deadline=None)
def test_each_prompt_of_a_batch_is_as_long_as_what_an_engine_reads_at_once(first, rest, part, path):
    """An image is as long as 2,400 characters."""
    document = BATCHES[path](part(first), [part(each) for each in rest])
    body = read_body(api_of(path), orjson.dumps({"model": "m", **document}))
    asked, *sizes = (2400 if is_data(each) else len(each.encode()) for each in (first, *rest))
    pairs = isinstance(document.get("query", document.get("text_1")), str | dict)
    longest = asked + max(sizes) if pairs else max(asked, *sizes)
    # Formats and other short members count as well.
    assert body.longest_share * body.chars == pytest.approx(longest, rel=0.1, abs=60)
    assert body.chars == pytest.approx(asked + sum(sizes), rel=0.1, abs=60)


@pytest.mark.parametrize("more", [{}, {"prompt": "and a text"}])
def test_embeddings_count_as_the_tokens_they_represent(more):
    data = base64.b64encode(bytes(2000 * 8192)).decode()
    for embeds in (data, [data]):
        body = orjson.dumps({"model": "m", "prompt_embeds": embeds, **more})
        read = read_body(Api.COMPLETIONS, body)
        assert read.chars / 4 == pytest.approx(2000, rel=0.02)
        assert read.question == more.get("prompt", "")


def test_images_are_represented_by_digests_so_that_equal_ones_share_a_prefix():
    def spans(url: str) -> tuple[str, ...]:
        part = {"type": "image_url", "image_url": {"url": url}}
        message = {"role": "user", "content": [part, {"type": "text", "text": "t"}]}
        return read_body(Api.CHAT, orjson.dumps({"model": "m", "messages": [message]})).spans

    assert spans("data:a") == spans("data:a")
    assert spans("data:a") != spans("data:b")
    assert not any("data:a" in span for span in spans("data:a"))


SIGNATURES = {
    "S3": "X-Amz-Algorithm X-Amz-Credential X-Amz-Date X-Amz-Expires X-Amz-SignedHeaders"
    " X-Amz-Security-Token X-Amz-Signature",
    "S3, version 2": "AWSAccessKeyId Expires Signature",
    "CloudFront": "Expires Signature Key-Pair-Id Policy",
    "GCS": "X-Goog-Algorithm X-Goog-Credential X-Goog-Date X-Goog-Expires X-Goog-SignedHeaders"
    " X-Goog-Signature",
    "GCS, version 2": "GoogleAccessId Expires Signature",
    "Azure": "sv st se sr sp spr skoid sktid skt ske sks skv sip sig",
    "OSS": "OSSAccessKeyId Expires Signature security-token",
    "COS": "q-sign-algorithm q-ak q-sign-time q-key-time q-signature",
    "Discord": "ex is hm",
    "others": "token expires",
}


@given(
    signed=st.sampled_from([*SIGNATURES.values()]),
    values=st.lists(st.text("abcdef0123456789%", min_size=1), min_size=32, max_size=32),
    others=st.sampled_from([(), ("w=300",), ("versionId=a", "x-oss-process=image/resize,w_9")]),
    data=st.data(),
)
def test_a_signed_url_is_the_same_image_in_each_turn(signed, values, others, data):
    def digest(url, of="image_url", **part):
        parts = {
            "image_url": {"type": of, of: {"url": url}},
            "input_image": {"type": of, "image_url": url},
            "image": {"type": of, "source": {"type": "url", "url": url}},
        }
        message = {"role": "user", "content": [{**parts[of], **part}]}
        return read_body(Api.CHAT, orjson.dumps({"messages": [message]})).spans[-1]

    names = signed.split()
    first, second = iter(values[:16]), iter(values[16:])
    query = data.draw(st.permutations([*others, *(f"{name}=%s" for name in names)]))
    turns = [
        "https://host/p.png?" + "&".join(q % next(v) if "%s" in q else q for q in query)
        for v in (first, second)
    ]
    for of in ("image_url", "input_image", "image"):
        assert digest(turns[0], of) == digest(turns[1], of)
        assert digest(turns[0], of) != digest(turns[0].replace("p.png", "q.png"), of)
        assert digest(turns[0], of, uuid="a") == digest("https://other/", of, uuid="a")
        assert digest(turns[0], of, uuid="a") != digest(turns[0], of, uuid="b")
    plain = "https://host/p.png?date=2020&id=%s&page=1"
    assert digest(plain % 1) != digest(plain % 2)
    assert digest("https://host/p.png?date=1") != digest("https://host/p.png?date=2")


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"not json", "not valid JSON"),
        (b"", "not valid JSON"),
        (b"[1]", "must be a JSON object"),
        (b'{"model": 5, "messages": [{}]}', "`model`"),
        (b'{"a":' * 200_000 + b"1" + b"}" * 199_999, "must be a JSON object"),
        (b"[" * 2000 + b"]" * 2000, "must be a JSON object"),
    ],
)
def test_a_body_that_cannot_be_routed_gets_a_400_with_the_reason(body, complaint):
    with pytest.raises(RequestError, match=complaint) as refused:
        read_body(Api.CHAT, body)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "packed",
    [
        zlib.compress(b'{"model": "m"}' * 50),
        zlib.compress(b'{"model": "m"}' * 50, wbits=-15),
        b"\x0b\x06\x80" + b'{"model": "m"}' + b"\x03",  # Brotli, which stores short texts as is
        b"\x89PNG binary",
    ],
)
def test_a_body_in_any_compression_gets_a_415(packed):
    with pytest.raises(RequestError) as refused:
        read_body(Api.CHAT, packed)
    assert (refused.value.status, refused.value.reason) == (415, "not-utf-8")


@pytest.mark.parametrize(
    ("given", "streams"),
    [
        *((given, True) for given in ("true", "1", '"true"', '"True"')),
        *((given, False) for given in ("null", "0", '"false"', '""', "[true]", "{}")),
    ],
)
def test_a_stream_is_recognized_as_engines_do(given, streams):
    body = b'{"model": "m", "prompt": "p", "stream": %b}' % given.encode()
    assert read_body(Api.COMPLETIONS, body).stream is streams


def test_a_refusal_contains_no_part_of_the_prompt():
    with pytest.raises(RequestError) as refused:
        read_body(Api.CHAT, b'{"model": "m", "messages": [{"content": "my secret" oops}]}')
    assert "secret" not in str(refused.value)


def test_reading_an_opaque_body_never_fails():
    assert read_body(Api.OPAQUE, b'{"model":"m"}').model == "m"
    odd = (b"", b"[", b"[1]", b'{"model":1}', b"--boundary", bytes(range(256)), b"{" * 5000)
    assert [read_body(Api.OPAQUE, body).model for body in odd] == [""] * len(odd)
    other = [body for body in odd if not body.startswith(b"{")]  # in engines' own forms
    assert {read_body(Api.OTHER, body).api for body in other} == {Api.OPAQUE}


@settings(max_examples=examples(150))
@given(
    members=st.lists(st.tuples(KEYS.filter(lambda key: key != "model"), JSON), max_size=5),
    at=st.integers(0, 5),
    indent=st.sampled_from([None, 1]),
    ascii_only=st.booleans(),
    padding=st.sampled_from([0, 5000]),
)
def test_the_splice_changes_the_top_level_model_and_no_other_byte(
    members, at, indent, ascii_only, padding
):
    """Compare with a replacement by the standard library; only the name changes the length."""
    unique = dict(members)
    items = list(unique.items())
    items.insert(at, ("model", "old"))
    items.insert(0, ("padding", "x" * padding))
    body = json.dumps(dict(items), indent=indent, ensure_ascii=ascii_only).encode(
        "utf-8", "surrogatepass"
    )
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError:
        return  # a body with lone surrogates is never spliced
    spliced = splice_model(body, "new-name")
    assert json.loads(spliced) == {**json.loads(body), "model": "new-name"}
    assert len(spliced) - len(body) == len("new-name") - len("old")


def form(*fields: tuple[str, bytes], boundary: bytes = b"----x") -> bytes:
    parts = (
        b'--%b\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n'
        % (boundary, name.encode(), b'; filename="a.wav"' if name == "file" else b"", value)
        for name, value in fields
    )
    return b"".join(parts) + b"--%b--\r\n" % boundary


AUDIO = bytes(range(256)) * 5000 + b'\r\n--other\r\n"model"\r\n\r\nnone\r\n----'


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (form(("model", b"whisper"), ("file", AUDIO)), "whisper"),
        (
            form(("file", AUDIO), ("prompt", b""), ("model", "wh\u00efsper".encode())),
            "wh\u00efsper",
        ),
        (form(("model", b"other"), ("file", AUDIO), ("model", b"whisper")), "whisper"),
        (form(("file", AUDIO), ("models", b"whisper")), ""),
        (form(("model", b"\xff\xfe")), ""),
        (form(("model", b"")), ""),
        (form(("file", AUDIO), ("model", b"cut short"))[:-20], ""),
        (b"--" + b"x" * 500, ""),
        (b"--\r\n" * 5000, ""),
        (b"--x\r\n\r\n" * 5000, ""),
    ],
)
def test_the_model_in_a_form_is_found_at_any_position_and_spliced(body, model):
    read = read_body(Api.OPAQUE, body)
    assert read.model == model
    if model:
        spliced = splice_model(body, "tiny")
        last = body.rindex(model.encode())
        assert spliced == body[:last] + b"tiny" + body[last + len(model.encode()) :]


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/v1/realtime?model=whisper", "whisper"),
        ("/v1/realtime/?a=b&model=org%2Fwhisper&model=x", "org/whisper"),
        ("/v1/realtime", ""),
        ("/v1/models/whisper", "whisper"),
        ("/v1/models/org/whisper?x=1", "org/whisper"),
        ("/openai/realtime?api-version=1&deployment=x%3Ay", "x:y"),
        ("/openai/deployments/x%3Ay/images/generations?api-version=1", "x:y"),
        ("/v1/engines/org/x/completions/", "org/x"),
        ("/deployments/x/anything", "x/anything"),
        ("/v1/chat/completions?path=/deployments/x/chat/completions", ""),
        ("/v1/models/", ""),
        ("/health?model=whisper", ""),
    ],
)
def test_a_path_may_name_the_model(path, model):
    assert model_of(path) == model


SYSTEM = {"role": "system", "content": "S"}
USER = {"role": "user", "content": "U"}


@pytest.mark.parametrize(
    ("api", "body"),
    [
        (Api.CHAT, {"messages": [SYSTEM, USER]}),
        (Api.MESSAGES, {"system": "S", "messages": [USER]}),
        (Api.RESPONSES, {"instructions": "S", "input": "U"}),
    ],
)
def test_tools_follow_the_system_prompt_as_in_most_templates(api, body):
    spans = read_body(api, orjson.dumps({"model": "m", "tools": [{"name": "t"}], **body})).spans
    assert [text for text in spans if "\x1f" not in text] == ["S", '[{"name":"t"}]', "U"]


def test_documents_for_the_chat_template_are_part_of_the_prompt():
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    body = {"model": "m", "messages": messages, "documents": [{"text": "D"}]}
    spans = read_body(Api.CHAT, orjson.dumps(body)).spans
    assert [text for text in spans if "\x1f" not in text] == ["S", '[{"text":"D"}]', "U"]
