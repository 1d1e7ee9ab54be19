"""Unusual bodies go to the engine unchanged, or are refused with a reason."""

from __future__ import annotations

import json

import pytest
from attacked import MODEL, PATH, Attacked, Judge, chat, each_case

pytestmark = [
    pytest.mark.envoy,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize(
        "stand", ["standalone, patient", "gateway, patient"], indirect=True, scope="session"
    ),
]

MESSAGES = b'"messages":[{"role":"user","content":"x"}]'


def auto(*members: bytes) -> bytes:
    return b'{"model":"auto",' + b",".join((*members, MESSAGES)) + b"}"


ODD = {
    "lone surrogate": auto(b'"user":"\\ud800"'),
    "surrogates in the prompt": chat("x").replace(b'"x"', b'"\\udc00\\ud800"'),
    "NaN": auto(b'"temperature":NaN'),
    "Infinity": auto(b'"temperature":-Infinity'),
    "1e400": auto(b'"temperature":1e400'),
    "byte order mark": b"\xef\xbb\xbf" + auto(),
    "white space": b" \t\r\n" * 5000 + auto(),
    "20,000 keys": auto(*(b'"k%d":0' % n for n in range(20_000))),
    "key of 100 KB": auto(b'"%s":0' % (b"k" * 100_000)),
    "control bytes in a key": auto(b'"a\\u0000b":0'),
    "n of 1,000,000": auto(b'"n":1000000,"best_of":1000000'),
    "max_tokens -5": auto(b'"max_tokens":-5'),
    "max_tokens 10^40": auto(b'"max_tokens":1' + b"0" * 40),
    "max_tokens as text": auto(b'"max_tokens":"many"'),
    "priority as a list": auto(b'"priority":[1]'),
    "tools nested": auto(b'"tools":' + b'[{"function":' * 400 + b"1" + b"}]" * 400),
    "cache_salt of 1 MB": auto(b'"cache_salt":"%s"' % (b"s" * 1_000_000)),
    "40,000 messages": b'{"model":"auto","messages":[%s]}'
    % b",".join([b'{"role":"user","content":"x"}'] * 40_000),
    "messages of strange roles": auto().replace(b'"user"', b'"\\u202e\\u0000"'),
}


@each_case("name", ODD)
async def test_unusual_bodies_are_left_to_the_engine(
    target: Attacked, judge: Judge, name: str
) -> None:
    body = ODD[name]
    answer = await target.post(body)
    reached = target.reached()
    intact = [b"".join(seen.body.split(b'"m"')) for seen in reached] == [
        b"".join(body.split(b'"auto"' if b'"auto"' in body else b'"m"'))
    ]
    untouched = [seen.body for seen in reached] == [body]
    holds = answer.status == 200 and (intact or untouched)
    judge("200; the bytes as sent but for the model's name", f"{answer}", holds)


REFUSED = {
    "1,500 deep": auto(b'"x":' + b"[" * 1500 + b"]" * 1500),
    "100,000 deep": auto(b'"x":' + b"[" * 100_000 + b"]" * 100_000),
    "UTF-16": auto().decode().encode("utf-16"),
    "UTF-32 without a mark": auto().decode().encode("utf-32-be"),
    "invalid UTF-8": auto(b'"user":"\xff\xfe"'),
    "integer of 5,000 digits": auto(b'"seed":' + b"9" * 5000),
    "half a body": auto()[:-9],
    "null": b"null",
    "a number": b"1" * 300,
    "model that is a list": b'{"model":["m"],' + MESSAGES + b"}",
    "model that is a number": b'{"model":5,' + MESSAGES + b"}",
    "unknown model": chat(model="nobody's"),
    "trailing bytes": auto() + b"}",
    "comment": b"/* */" + auto(),
    "single quotes": auto().replace(b'"', b"'"),
    "zeros": b"\0" * 4096,
}


@each_case("name", REFUSED)
async def test_bodies_that_cannot_be_routed_are_refused_with_a_reason(
    target: Attacked, judge: Judge, name: str
) -> None:
    answer = await target.post(REFUSED[name])
    known = answer.status in (400, 404, 415) and b'"error"' in answer.body
    judge("400, 404 or 415; nothing at an engine", answer, known and not target.reached())


SPELT = {
    "escaped key": b'{"m\\u006fdel":"auto",' + MESSAGES + b"}",
    "escaped key last": b'{"model":"nobody",' + MESSAGES + b',"\\u006dodel":"auto"}',
    "double key": b'{"model":"nobody",' + MESSAGES + b',"model":"auto"}',
    "escaped value": b'{"model":"\\u0061uto",' + MESSAGES + b"}",
    "nested key": b'{"x":{"model":"nobody"},"model":"auto",' + MESSAGES + b"}",
    "key in the prompt": b'{"messages":[{"role":"user","content":"\\",\\"model\\":\\"y\\""}],'
    b'"model":"auto"}',
}


@each_case("name", SPELT)
async def test_the_engine_reads_the_model_that_was_decided(
    target: Attacked, judge: Judge, name: str
) -> None:
    answer = await target.post(SPELT[name])
    models = [json.loads(seen.body)["model"] for seen in target.reached()]
    judge(f"200; {MODEL} at the engine", models, answer.status == 200 and models == [MODEL])


@each_case("size", [1, 17, 92])
async def test_a_body_may_be_split_anywhere_into_two_chunks(
    target: Attacked, judge: Judge, size: int
) -> None:
    body = auto()
    head = b"POST %s HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % (PATH.encode(), len(body))
    answer = await target.raw(head + body[:size], body[size:])
    bodies = [seen.body for seen in target.reached()]
    judge("200; the model's name alone is changed", answer, bodies == [body.replace(b"auto", b"m")])
