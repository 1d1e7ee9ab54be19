"""Bodies of hostile clients, and of clients that write JSON as Python does."""

import json
import math
import tracemalloc
from unittest import mock

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar.errors import RequestError
from laar.protocol import jsonscan, openai, prompt, splice
from laar.protocol.jsonscan import member_spans
from laar.protocol.openai import read_body, try_read
from laar.protocol.splice import splice_model
from laar.request import Api
from support.exploring import examples
from support.speed import times_as_long

DEEP = b"[" * 200_000 + b"]" * 200_000
MESSAGES = b'"messages":[{"role":"user","content":"a question"}]'
NOT_UTF_8 = ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"]


def padded(before: bytes, after: bytes) -> bytes:
    """Return a body with the model in the middle, where no shortcut finds it."""
    return b'{%b"model":"auto",%b,"y":"%b","model_":"model"%b}' % (
        before,
        MESSAGES,
        b"y" * 8000,
        after,
    )


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_body_nested_too_deeply_to_be_read_is_refused(place):
    deep = {"before": (b'"x":%b,' % DEEP, b""), "after": (b"", b',"x":%b' % DEEP)}[place]
    body = padded(*deep)
    assert "nested too deeply" in str(try_read(Api.CHAT, body))
    with pytest.raises(RequestError, match="nested too deeply"):
        splice_model(body, "m")


TOOLS = b'"tools":[{"name":"%b","schema":{"model":{"type":"string"}}}]' % (b"t" * 9000)


LONG = b'"messages":[{"role":"user","content":"%b"}]' % (b"x" * openai.ASIDE_BYTES)


@pytest.mark.parametrize(
    ("api", "body"),
    [
        (Api.CHAT, b"{%b,%b}" % (LONG, TOOLS)),
        (Api.CHAT, b'{"model":null,%b,%b}' % (LONG, TOOLS)),
        (Api.OPAQUE, b'{"model":"auto",%b,%b}' % (LONG, TOOLS)),
    ],
)
def test_the_model_of_a_long_body_is_located_while_it_is_read(monkeypatch, api, body):
    """Scanning 32 MB would block other requests."""
    read = read_body(api, body)
    monkeypatch.setattr(splice, "member_spans", lambda _: pytest.fail("scanned"))
    spliced = splice_model(body, "served", read.model_span)
    assert orjson.loads(spliced) == orjson.loads(body) | {"model": "served"}


@pytest.mark.parametrize("wrong", [b'"stream":-NaN', b'"max_tokens":1NaN', b'"cache_salt":"\xff"'])
def test_a_long_body_with_an_invalid_member_is_refused(wrong):
    parts = b"[],".join([b""] * (jsonscan.MAX_PARTS + 9))
    read = try_read(Api.CHAT, b'{%b,"model":"auto","x":[%b0]}' % (wrong, parts))
    assert isinstance(read, RequestError)
    assert read.status == 400


@pytest.mark.parametrize("before", [b"", b'"x":1,'])
def test_a_model_of_very_many_escapes_takes_little_memory(before):
    """In a body of 32 MB it took 2 GB, and blocked other requests for seconds."""
    body = b'{%b"model":"%b",%b}' % (before, b"\\n" * 500_000, MESSAGES)
    tracemalloc.start()
    spliced = splice_model(body, "served")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert spliced == b'{%b"model":"served",%b}' % (before, MESSAGES)
    assert peak < 20 * len(body)


def test_a_body_with_very_many_messages_is_not_parsed_completely(monkeypatch):
    monkeypatch.setattr(jsonscan, "MAX_PARTS", 2_000)
    built = []
    monkeypatch.setattr(orjson, "loads", lambda text: built.append(len(text)))
    message = b'{"role":"user","content":"x"}'
    body = b'{"messages":[%b],"model":"auto","stream":true,"max_tokens":9,"cache_salt":"s"}' % (
        b",".join([message] * 20_000)
    )
    read = read_body(Api.CHAT, body)
    assert max(built, default=0) < 5000  # only the end of the body, to find the model
    assert (read.model, read.stream, read.max_tokens, read.salt) == ("auto", True, 9, "s")
    assert (read.spans, read.chars) == ((), len(body))
    monkeypatch.undo()
    assert splice_model(body, "m", read.model_span) == body.replace(b'"auto"', b'"m"')


PARTS = [b"{}", b"[]", b'""', b'{"role":"user","content":"x"}', b"1", b'{"rid":[1]}', b'"\\ud83d"']


@pytest.mark.long
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("key", [b"messages", b"prompt", b"input", b"x"])
def test_no_body_takes_much_longer_than_a_parser(key, part):
    """Engines parse the whole body: for 70,000 messages, the picker took 20 times as long."""
    count = (2 << 20) // (len(part) + 1)
    body = b'{"model":"m","%b":[%b]}' % (key, b",".join([part] * count))
    api = {b"messages": Api.CHAT, b"input": Api.RESPONSES}.get(key, Api.COMPLETIONS)
    assert read_body(api, body).model == "m"
    assert times_as_long(lambda: read_body(api, body), lambda: json.loads(body), tries=3) < 9


@pytest.mark.long
@pytest.mark.parametrize("name", [b"%x", b"kv%x", b"request_id%x", b"\\u0061%x"])
def test_no_body_with_very_many_names_takes_much_longer_than_a_parser(name):
    names = [b'"%b":1' % (name % n) for n in range(150_000)]
    body = b'{"model":"m","x":[{%b}]}' % b",".join(names)
    ratio = times_as_long(lambda: try_read(Api.CHAT, body), lambda: json.loads(body), tries=3)
    assert ratio < 9


MAX_MEDIA = prompt.MAX_HASHED_BYTES // 2400


@pytest.mark.parametrize("more", [-5, 5])
@pytest.mark.parametrize(("part", "most"), [("x", prompt.MAX_SPANS), ({}, MAX_MEDIA)])
def test_a_prompt_of_too_many_parts_is_priced_by_its_length(part, most, more):
    """A part that is not text is padded, so far fewer of them take as long to hash."""
    content = [part] * (most + more)
    body = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": content}]})
    read = read_body(Api.CHAT, body)
    assert bool(read.spans) is (more < 0)
    assert read.chars == (sum(map(len, read.spans)) or len(body))
    assert read.chars <= 4 << 20


def test_lone_surrogates_in_the_prompt_become_text():
    document = {
        "model": "m\udc00",
        "messages": [{"role": "user", "content": "a\ud800"}],
        "cache_salt": "\udfff",
    }
    read = read_body(Api.CHAT, json.dumps(document).encode())
    assert (read.model, read.question, read.salt) == ("m?", "a?", "?")
    assert all(span.encode() for span in read.spans)


def encoded(text: str) -> bytes:
    return text.encode("utf-8-sig")


def test_a_byte_order_mark_is_kept():
    text = '{"messages":[{"role":"user","content":"\u7d00 \u017d \U0001f600"}],"model":"auto"}'
    read = read_body(Api.CHAT, encoded(text))
    assert (read.model, read.question) == ("auto", "\u7d00 \u017d \U0001f600")
    assert splice_model(encoded(text), "m\u00e9") == encoded(text.replace("auto", "m\u00e9"))
    bare = text.replace(',"model":"auto"', "")
    assert splice_model(encoded(bare), "m") == encoded(bare[:-1] + ',"model":"m"}')
    early = text.replace('{"mess', '{"model":"a","x":{"model":1},"y":"%s","mess' % ("y" * 8000))
    early = early.replace(',"model":"auto"', "")
    assert splice_model(encoded(early), "m") == encoded(early.replace('"a"', '"m"'))


@pytest.mark.parametrize("encoding", NOT_UTF_8)
def test_other_encodings_are_refused(encoding):
    """Python's JSON module accepts other encodings, but RFC 8259 forbids sending them."""
    body = '{"model":"auto","messages":[{"role":"user","content":"a question"}]}'
    for api in (Api.CHAT, Api.OPAQUE):
        with pytest.raises(RequestError, match="not UTF-8") as refused:
            read_body(api, body.encode(encoding))
        assert refused.value.status == 415


@pytest.mark.parametrize(
    ("api", "document"),
    [
        (Api.COMPLETIONS, {"prompt_embeds": "AAAA"}),
        (Api.COMPLETIONS, {"prompt": None, "prompt_embeds": ["AAAA"]}),
        (Api.EMBEDDINGS, {"messages": [{"role": "user", "content": "embed me"}]}),
        (Api.CHAT, {"messages": []}),
        (Api.CHAT, {}),
        (Api.RESPONSES, {"prompt": {"id": "p"}}),
    ],
)
def test_a_prompt_in_a_different_form_passes(api, document):
    body = orjson.dumps({"model": "m", **document})
    read = read_body(api, body)
    assert read.model == "m"
    assert read.chars == (sum(map(len, read.spans)) if read.spans else len(body))


@pytest.mark.parametrize("model", [b"", b'"model":null,', b'"model":"",'])
def test_a_body_without_a_model_is_read_and_can_be_given_one(model):
    body = b"{%b%b}" % (model, MESSAGES)
    assert read_body(Api.CHAT, body).model == ""
    spliced = splice_model(body, "m")
    assert json.loads(spliced) == {**json.loads(body), "model": "m"}
    assert json.loads(splice_model(b"{ }", "m")) == {"model": "m"}


SCALARS = st.none() | st.booleans() | st.integers() | st.text('ab"\\{}[],: \u00e9\n', max_size=6)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text('a"\\{}:,', max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


KEYS = st.sampled_from(["model", "stream", "messages"]) | st.text('ab"\\{}[]:,', max_size=4)
LENIENT = st.sampled_from(["\ud83d", "NaN", "\\udead", "\\NaN", math.nan, -math.inf, math.inf])


@pytest.mark.long
@settings(max_examples=examples(400))
@given(
    members=st.dictionaries(KEYS, VALUES | LENIENT, max_size=5),
    indent=st.sampled_from([None, 1]),
    ascii_only=st.booleans(),
)
def test_members_are_located_where_a_parser_finds_them(members, indent, ascii_only):
    text = json.dumps(members, indent=indent, ensure_ascii=ascii_only)
    text = text.encode(errors="surrogatepass")
    spans = member_spans(text)
    assert spans is not None
    found = {key: json.loads(text[slice(*span)]) for key, span in spans.items()}
    wanted = {
        key: value for key, value in members.items() if key in ("model", "stream", "messages")
    }
    assert repr({key: found[key] for key in wanted}) == repr(wanted)


LONG_VALUES = st.recursive(
    st.none() | st.integers(-9, 9) | st.text('a{[,"\u00e9\\', max_size=90),
    lambda inner: (
        st.lists(inner, max_size=9) | st.dictionaries(st.text("ab", max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@pytest.mark.long
@settings(max_examples=examples(150))
@given(value=LONG_VALUES, cut=st.integers(0, 2))
def test_a_long_text_is_parsed_in_pieces_as_by_any_parser(value, cut):
    text = orjson.dumps({"a": value})

    def shown(each: object) -> object:
        """Return the lengths of strings instead of the strings."""
        if isinstance(each, dict):
            return {name: shown(member) for name, member in each.items()}
        if isinstance(each, str):
            return getattr(each, "chars", 0) or len(orjson.dumps(each))
        return list(map(shown, each)) if isinstance(each, list) else each

    limits = {"MAX_AT_ONCE_BYTES": 70, "SHORT_BYTES": 9, "_MAX_CONTAINERS": 2}
    with mock.patch.multiple(jsonscan, **limits):
        try:
            found = jsonscan.parse_in_pieces(text[: len(text) - cut])
        except ValueError:  # or nested deeper than prompts are
            assert cut or text.count(b"[") + text.count(b"{") > 8
        else:
            assert not cut
            assert shown(found) == shown({"a": value})


@pytest.mark.parametrize(("api", "key"), [(Api.CHAT, "messages"), (Api.RESPONSES, "input")])
def test_long_media_are_told_apart_and_a_text_too_long_for_engines_is_priced(api, key, monkeypatch):
    for of in (openai, jsonscan):
        monkeypatch.setattr(of, "MAX_AT_ONCE_BYTES", 5000)
        monkeypatch.setattr(of, "SHORT_BYTES", 100)

    def asked(*parts: dict[str, object]) -> openai.Body:
        items = [{"role": "user", "content": parts}]
        return read_body(api, orjson.dumps({"model": "m", key: items}))

    long = "data:," + "Q" * 9000
    text = asked({"type": "text", "text": long})
    assert text.spans == ()
    assert text.chars == pytest.approx(len(long), rel=0.02)
    media = [asked({"type": "video_url", "video_url": {"url": u}}) for u in (long, long, long[1:])]
    assert media[0].spans == media[1].spans != media[2].spans
    assert media[0].chars == media[2].chars

    part = b'{"type":"text","text":"a\\ud83d \\ud83d\\ude00"}'
    lone = b'{"model":"m","%b":[{"role":"user","content":[%b' % (key.encode(), part)
    for end in (b"]}]}", b',{"type":"video_url","video_url":{"url":"%b"}}]}]}' % long.encode()):
        read = read_body(api, b"\xef\xbb\xbf" + lone + end)
        assert (read.question, len(read.spans) > 0) == ("a? \U0001f600", True)
