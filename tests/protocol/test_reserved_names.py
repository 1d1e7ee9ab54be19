"""No request may name hosts for an engine to contact, in whatever words its release uses."""

import json
import re
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laar.errors import RequestError
from laar.protocol import jsonscan, openai
from laar.protocol.headers import CONTROL_HEADERS, CREDENTIALS, SIGNATURES, read_head
from laar.protocol.openai import read_body, try_read
from laar.protocol.reserved import check_keys, header_pattern, reserved_headers
from laar.protocol.sessions import AGENT_HEADERS, SESSION_HEADERS
from laar.request import Api

NAMES = json.loads((Path(__file__).parent / "engine_names.json").read_text())
"""Names that released engines read; `python deploy/engine_names.py` renews them."""

PROMPT = {
    "model": "m",
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": "http://10.0.0.1/a.png"}},
                {"type": "text", "text": '"kv_transfer_params": {"remote_host": "a"}'},
            ],
        }
    ],
    "tools": [
        {"type": "mcp", "server_url": "http://10.0.0.1", "connector_id": "a"},
        {"type": "function", "function": {"parameters": {"properties": {"kv_host": {}}}}},
    ],
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "explicit"},
    "parallel_tool_calls": True,
    "metadata": {"prefill_host": "a"},
    "request_id": "ip_addr_1",
    "kv_transfer_params": {"remote_host": None, "do_remote_decode": False, "max_tokens": 5},
    "mcp_servers": [{"type": "url", "url": "http://10.0.0.1"}],
}
APIS = [Api.CHAT, Api.OPAQUE, Api.COMPLETIONS, Api.RESPONSES, Api.EMBEDDINGS]


def denied(given, api=Api.CHAT):
    """Return whether a body with these members is refused; fail if it is for another reason."""
    read = try_read(api, orjson.dumps({**PROMPT, **given}))
    if isinstance(read, RequestError):
        assert (read.status, read.reason) == (400, "denied-member")
    return isinstance(read, RequestError)


def test_all_names_of_released_engines_were_reviewed():
    assert NAMES["unreviewed"] == []
    for name in NAMES["reserved"]:
        if name.startswith("x-"):
            assert reserved_headers([name]), name
        else:
            inner = {"kv_transfer_params": {name: 8998}}
            assert denied({name: {"a": "10.0.0.1"}}) or denied(inner), name
    for name in NAMES["harmless"]:
        assert not denied({name: "10.0.0.1"}), name


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    "given",
    [
        {"kv_transfer_params": {"do_remote_prefill": True}},
        {"kv_transfer_params": {"p2p": {"a": ["10.0.0.1"]}}},
        {"ec_transfer_params": {"a": "10.0.0.1"}},
        {"kv_hints": {"actions": [{"payload": {"a": "10.0.0.1"}}]}},
        {"sampling_params": {"extra_args": {"kv_transfer_params": {"remote_port": 1}}}},
        {"sampling_params": [{}, {"extra_args": {"kv_transfer_params": {"remote_port": 1}}}]},
        {"vllm_xargs": {"remote_bootstrap_addr": "a"}},
        {"migration_request": {"remote_engine_id": 1}},
        {"disaggregated_params": {"opaque_state": "a"}},
        {"bootstrap_host": ["10.0.0.1"], "bootstrap_port": [1]},
        {"bootstrap_room": 1},
        {"encoder_urls": ["http://10.0.0.1"]},
        {"http_worker_ipc": "ipc:///tmp/a"},
        {"kvTransferParams": {"remoteHost": "a"}},
        {"request_id": "___prefill_addr_10.0.0.1:1___decode_addr_10.0.0.2:1_a"},
        {"rid": ["a", "___decode_addr_10.0.0.2:1_a"]},
        {"sampling_params": [{"n": 1}] * 2000},
        {f"name-{n}": 1 for n in range(100_000)} | {"kv_hints": {"a": "10.0.0.1"}},
    ],
)
def test_a_body_that_names_a_peer_is_refused(given, api):
    assert denied(given, api)
    assert not denied({}, api)


@pytest.mark.parametrize("key", ["encoder_urls", r"encoder_\u0075rls", "kv_transfer_params"])
def test_a_body_with_too_many_parts_to_parse_hides_no_peer(key):
    many = b",".join([b'{"a":["b","c"]}'] * 200_000)
    body = b'{"model":"m","messages":[%b],"%b":{"a":"10.0.0.1"}}' % (many, key.encode())
    with pytest.raises(RequestError) as caught:
        read_body(Api.CHAT, body)
    assert caught.value.reason == "denied-member"
    assert read_body(Api.CHAT, body.replace(key.encode(), b"prompt_cache_key")).model == "m"


@pytest.mark.parametrize("long", [b'"c":"%b"' % (b"x" * 9000), b'"c":[%b0]' % (b"[]," * 200)])
@pytest.mark.parametrize("rest", [b"", b',"t":NaN', b',"t":"\\ud800"'])
@pytest.mark.parametrize("name", ["request_id", "rid"])
@pytest.mark.parametrize(
    "ids",
    [
        PEER := "___prefill_addr_10.0.0.1:1___decode_addr_10.0.0.2:1_a",
        "x" * 9000 + PEER,
        ["a", PEER],
        ["]", PEER],
    ],
)
def test_a_body_that_is_not_read_as_a_whole_hides_no_peer(monkeypatch, ids, name, rest, long):
    for of in (openai, jsonscan):
        monkeypatch.setattr(of, "MAX_AT_ONCE_BYTES", 5000)
        monkeypatch.setattr(of, "SHORT_BYTES", 100)
    monkeypatch.setattr(jsonscan, "_MAX_CONTAINERS", 100)

    def body(ids: object) -> bytes:
        return b'{"model":"m",%b%b,"%b" : %b}' % (long, rest, name.encode(), orjson.dumps(ids))

    read = try_read(Api.CHAT, body(ids))
    assert isinstance(read, RequestError)
    assert read.reason == "denied-member"
    assert read_body(Api.CHAT, body(["a"])).model == "m"


def test_no_space_before_a_colon_hides_a_reserved_key():
    for before in range(262_144 - 600, 262_144, 37):
        body = b'{"p":"%b","encoder_urls"%b:["a"]}' % (b"x" * before, b" " * 2000)
        with pytest.raises(RequestError):
            check_keys(body)


WORDS = (
    "x kv cache source host port prefiller url peer rank override forwarded a encoders addresses"
)
DRAWN = st.lists(st.sampled_from(WORDS.split()), min_size=1, max_size=6, unique=True).map("-".join)


@given(name=DRAWN)
def test_envoy_and_the_picker_remove_the_same_headers(name):
    assert bool(re.fullmatch(header_pattern(), name)) == bool(reserved_headers([name]))
    assert read_head({name: "v"}).control == reserved_headers([name])


LLM_D = """x-prefiller-host-port x-prefiller-url x-encoder-hosts-ports x-data-parallel-host-port
x-kv-cache-source-host-port"""  # its sidecar is not on PyPI
HARMLESS = """host x-forwarded-host x-forwarded-port x-forwarded-server x-real-ip x-client-ip cookie
accept-encoding transfer-encoding cache-control x-cache x-envoy-peer-metadata-id forwarded te
x-envoy-decorator-operation x-http-method-override x-original-host origin referer"""


def test_headers_of_sidecars_are_removed_and_those_of_others_pass():
    assert set(reserved_headers(LLM_D.split())) == set(LLM_D.split())
    others = {*SESSION_HEADERS, *AGENT_HEADERS, *SIGNATURES, *CREDENTIALS, *CONTROL_HEADERS}
    assert reserved_headers([*HARMLESS.split(), *others]) == ()
