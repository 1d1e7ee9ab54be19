"""The session of a request is recognized by the headers and fields that agents send."""

from itertools import takewhile

import orjson
import pytest

from laar.prefix.beliefs import PrefixBeliefs
from laar.protocol.headers import CONTROL_HEADERS, attributes_read, read_head
from laar.protocol.openai import read_body
from laar.protocol.paths import response_of
from laar.protocol.sessions import SESSION_HEADERS, UNNAMED
from laar.protocol.sockets import socket_names
from laar.request import Api, Request
from laar_lab.sim.endpoint.bodies import MessagesBody
from laar_lab.sim.endpoint.bodies import read_body as read_in_engine


@pytest.mark.parametrize("header", ["x-laar-session", *SESSION_HEADERS])
def test_each_session_header_names_the_session(header):
    assert read_head({header: " abc "}).named.session == "abc"


def test_the_laar_header_takes_precedence_and_separates_sub_agents():
    main = {"x-claude-code-session-id": "s"}
    sub = {**main, "x-claude-code-agent-id": "a"}
    assert read_head(main).named.session == "s"
    assert read_head(sub).named.session == "s/a"
    assert read_head({**sub, "x-claude-code-parent-agent-id": "p"}).named.session == "s/a"
    assert read_head({**main, "x-claude-code-parent-agent-id": "p"}).named.session == "s/p"
    assert read_head({**sub, "x-laar-session": "mine"}).named.session == "mine"
    assert read_head({**sub, "x-laar-session": "x" * 300}).named.session == "s/a"


def test_session_headers_of_agents_are_attributes_and_are_forwarded():
    attributes = attributes_read()
    for header in SESSION_HEADERS:
        assert f"request.headers['{header}']" in attributes
        assert header not in CONTROL_HEADERS


@pytest.mark.parametrize(
    ("fields", "session"),
    [
        ({"prompt_cache_key": "k"}, "k"),
        ({"session_id": "s", "prompt_cache_key": "k"}, "s"),
        ({"session_id": 7, "prompt_cache_key": "k"}, "k"),
        ({"prompt_cache_key": 7, "metadata": {"user_id": "_session_u"}}, "u"),
        ({"metadata": {"user_id": "alice"}}, ""),
        ({"metadata": {"user_id": "7"}}, ""),
        ({"user": "alice", "safety_identifier": "alice"}, ""),
        ({"metadata": {"user_id": f"user_{'ab' * 32}_account__session_12-34"}}, "12-34"),
        ({"metadata": {"user_id": '{"device_id": "d", "session_id": "s-1"}'}}, "s-1"),
        ({"metadata": {"user_id": "{" + "[" * 900}}, ""),
        ({"metadata": {"user_id": "x" * 5000}}, ""),
        ({"metadata": {"user_id": "a\nb"}}, ""),
        ({"metadata": ["user_id"]}, ""),
        ({"vllm_xargs": {"agentic_context": {"program_id": "p", "session_id": "s"}}}, "p"),
        ({"vllm_xargs": {"agentic_context": {"session_id": "s", "agent_id": "a"}}}, "s/a"),
        ({"vllm_xargs": {"agentic_context": {"task_id": "t", "program_id": 7}}}, "t"),
        ({"vllm_xargs": {"agentic_context": ["p"]}}, ""),
        ({"vllm_xargs": "p", "metadata": {"user_id": "_session_u"}}, "u"),
        ({"cache_salt": "tenant"}, ""),
        ({}, ""),
    ],
)
def test_a_field_of_the_body_may_name_the_session(fields, session):
    body = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields})
    assert read_body(Api.MESSAGES, body).session == session


CLAUDE = {"user_id": '{"device_id": "d", "account_uuid": "", "session_id": "s"}'}
CODEX = {"session-id": "s", "x-client-request-id": "s", "x-codex-window-id": "s:0"}


@pytest.mark.parametrize(
    ("api", "headers", "fields", "session"),
    [
        # Claude Code 2.1; a sub-agent.
        (Api.MESSAGES, {"x-claude-code-session-id": "s"}, {"metadata": CLAUDE}, "s"),
        (
            Api.MESSAGES,
            {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"},
            {"metadata": CLAUDE},
            "s/a",
        ),
        # Codex 0.171; a sub-agent, with the cache key of its session.
        (Api.RESPONSES, {**CODEX, "thread-id": "s"}, {"prompt_cache_key": "s"}, "s"),
        (
            Api.RESPONSES,
            {**CODEX, "thread-id": "t", "x-codex-parent-thread-id": "s"},
            {"prompt_cache_key": "s"},
            "t",
        ),
        # OpenCode 1.18 and Kilo 7.7; a sub-agent.
        (Api.CHAT, {"x-session-affinity": "s", "x-session-id": "s"}, {}, "s"),
        (
            Api.CHAT,
            {"x-session-affinity": "t", "x-session-id": "t", "x-parent-session-id": "s"},
            {},
            "t",
        ),
        # Pi 0.74 with sendSessionAffinityHeaders.
        (Api.CHAT, {"x-session-affinity": "s", "x-client-request-id": "s"}, {}, "s"),
        # Kimi Code 2.1 and GitHub Copilot CLI, for sub-agents too.
        (Api.CHAT, {"x-msh-device-id": "d"}, {"prompt_cache_key": "session_s"}, "session_s"),
        (
            Api.RESPONSES,
            {"x-initiator": "agent", "x-interaction-type": "conversation-subagent"},
            {"prompt_cache_key": "s"},
            "s",
        ),
        # Qwen Code 0.24; Continue 1.5 and Cline 3.0 name nothing either.
        (Api.CHAT, {"user-agent": "QwenCode/0.24.4 (linux; x64)"}, {}, ""),
    ],
)
def test_the_requests_of_real_agents_name_their_session(api, headers, fields, session):
    prompt = {"input" if api is Api.RESPONSES else "messages": [{"role": "user", "content": "hi"}]}
    body = orjson.dumps({"model": "m", "stream": True, **prompt, **fields})
    assert (read_head(headers).named.session or read_body(api, body).session) == session


@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        ("GET", "/v1/responses/resp_1", "resp_1"),
        ("DELETE", "/v1/responses/resp_1", "resp_1"),
        ("POST", "/v1/responses/resp_1/cancel", "resp_1"),
        ("GET", "/v1/responses/resp_1/input_items?limit=2", "resp_1"),
        ("POST", "/v1/responses/render", ""),
        ("POST", "/v1/responses/input_tokens", ""),
        ("POST", "/v1/responses", ""),
        ("POST", "/v1/chat/completions", ""),
        ("GET", "/v1/responses/" + "x" * 300, ""),
    ],
)
def test_a_path_names_a_stored_answer(method, path, name):
    assert response_of(method, path) == name


TOOLS = [
    {"name": f"tool{n}", "description": "Does things. " * 60, "input_schema": {"type": "object"}}
    for n in range(20)
]


def agents_turn(turn, *, attribution_block):
    """Return the body of one turn of a coding agent, as Claude Code sends it."""
    line = f"x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=cli; cch={turn:05x};"
    rules = "You are a coding agent. " + "Rules stand here. " * 900
    system = (
        [
            {"type": "text", "text": line},
            {"type": "text", "text": rules, "cache_control": {"type": "ephemeral"}},
        ]
        if attribution_block
        else f"{line}\n{rules}"
    )
    messages = [{"role": "user", "content": [{"type": "text", "text": "Mend the parser."}]}]
    for n in range(turn):
        call = {"type": "tool_use", "id": f"t{n}", "name": "edit", "input": {"new": f"{n} " * 600}}
        result = {"type": "tool_result", "tool_use_id": f"t{n}", "content": f"file {n} " * 700}
        messages += [
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
        ]
    for message in messages[-2:]:  # cache marks move to the end in each turn
        message["content"][-1]["cache_control"] = {"type": "ephemeral"}
    document = {"model": "m", "max_tokens": 99, "system": system, "tools": TOOLS}
    return orjson.dumps({**document, "messages": messages})


def believed(first, second):
    """Return the share of the second body's prompt that is believed cached after the first."""
    beliefs = PrefixBeliefs(key=b"k", max_bytes=1 << 24)
    beliefs.make_room(1)
    chains = []
    for body in (first, second):
        read = read_body(Api.MESSAGES, body)
        chains.append(
            beliefs.chain(Request(id="r", api=Api.MESSAGES, spans=read.spans, salt=read.salt))
        )
    assert beliefs.match(chains[0])[0][0] == 0.0
    beliefs.settle(beliefs.insert(0, chains[0], 0.0), share=None)
    return float(beliefs.match(chains[1])[0][0])


@pytest.mark.parametrize("attribution_block", [True, False])
def test_the_next_turn_of_an_agent_is_believed_cached(attribution_block):
    first = agents_turn(18, attribution_block=attribution_block)
    second = agents_turn(19, attribution_block=attribution_block)
    share = believed(first, second)
    assert share >= 0.85
    texts = [read_in_engine(MessagesBody, body).to_prompt().text for body in (first, second)]
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False)))
    found = alike / len(texts[1])
    assert share == pytest.approx(found, abs=0.05)


def test_the_simulated_engine_omits_the_attribution_line_as_vllm_does():
    one, two = (
        read_in_engine(MessagesBody, body).to_prompt().text
        for body in (
            orjson.dumps(
                {
                    "max_tokens": 9,
                    "system": [
                        {"type": "text", "text": f"x-anthropic-billing-header: cch={n};"},
                        {"type": "text", "text": "Be brief."},
                    ],
                    "messages": [{"role": "user", "content": "hi"}],
                }
            )
            for n in (1, 2)
        )
    )
    assert one == two
    assert "Be brief." in one


@pytest.mark.parametrize(
    ("name", "is_hint"),
    [
        ("x-acme-conversation", True),
        ("X-Chat-Ref".lower(), True),
        ("sticky_thread", True),
        ("affinityToken", True),
        ("chat_template", False),
        ("x-parent-session-id", False),
        ("x-request-ref", False),
        ("session\0\1", False),
        ("thread\n", False),
    ],
)
def test_fields_that_may_name_a_session_are_tried(name, is_hint):
    found = ((name, "v"),) if is_hint else ()
    # A value that names nothing says nothing about the field.
    assert read_head({name: "\0"}).named == read_head({name: ""}).named == UNNAMED
    body = orjson.dumps({"model": "m", "messages": [], name: "v", "metadata": {name: "w"}})
    in_body = (*found, *((f"metadata.{name}", "w") for _ in found))
    if name != "x-parent-session-id":
        assert read_body(Api.CHAT, body).hints == in_body
    assert read_head({name: "v"}).named.hints == found
    assert read_head({name: "v" * 300}).named.hints == ()
    many = {f"{name}-{number}": "v" for number in range(500)}
    assert len(read_head(many).named.hints) <= 4


def test_the_field_that_named_a_session_and_its_parent_are_known():
    head = read_head({"x-affinity": "a", "x-parent-session-id": "p"})
    assert (head.named.session, head.named.field, head.parent) == ("a", "x-affinity", "p")
    body = read_body(Api.CHAT, b'{"model": "m", "messages": [], "metadata": {"session_id": "s"}}')
    assert (body.session, body.named_by, body.hints) == ("s", "metadata.session_id", ())


@pytest.mark.parametrize(
    ("query", "session"),
    [("thread_id=a%20b", "a b"), ("session_id=a%0Ab", ""), (f"session_id={'x' * 300}", "")],
)
def test_the_query_of_a_websocket_names_a_session_as_a_header_would(query, session):
    assert socket_names(f"/v1/responses?model=m&{query}", {}) == ("m", session)


CODEX_TURN = {"x-codex-turn-metadata": '{"model": "m", "deployment": "production"}'}


@pytest.mark.parametrize(
    ("path", "headers", "model"),
    [
        ("/v1/responses", CODEX_TURN | {"x-openai-model": "m"}, "m"),
        ("/v1/responses", CODEX_TURN | {"x-fallback-model": "other"}, ""),
        ("/v1/responses", {"x-fallback-model": "other"} | CODEX_TURN, ""),
        ("/v1/responses?model=n", CODEX_TURN | {"x-fallback-model": "other"}, "n"),
        ("/openai/realtime?deployment=n", CODEX_TURN, "n"),
        ("/v1/responses", CODEX_TURN | {"x-fallback-model": "a\nb"}, "m"),
    ],
)
def test_headers_that_disagree_name_no_model_of_a_websocket(path, headers, model):
    assert socket_names(path, headers)[0] == model
