"""llm-d's session affinity, where the settings ask for it."""

from base64 import b64encode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laar.fleet.membership import EndpointSpec
from laar.plugins import own
from laar.policies import build_plugins
from laar.protocol.headers import read_head
from laar.request import Api
from support.clients import chat, post
from support.directors import director_of
from support.exploring import examples
from support.requests import request_of

PODS = ("prod/m-0-rank-0", "prod/m-1-rank-0", "")
SPECS = [
    EndpointSpec(
        address=f"10.0.0.{n}:80", models=("m",), labels={"laar.dev/pod": pod} if pod else {}
    )
    for n, pod in enumerate(PODS)
]
NAMES = [pod or SPECS[n].address for n, pod in enumerate(PODS)]


def asked(token, **fields):
    return request_of("hello", given=read_head({"x-session-token": token}).given, **fields)


def told(director, decision):
    of = {plugin.name: plugin for plugin in decision.parts}
    return dict(of["session-token"].answers(decision, 0.0))["x-session-token"]


@given(
    st.lists(
        st.sampled_from(NAMES).map(lambda name: b64encode(name.encode()).decode())
        | st.sampled_from(["", "====", "gone", b64encode(b"prod/gone").decode()])
        | st.text(max_size=30),
        max_size=20,
    ),
    st.sampled_from(["laar", "random", "least-loaded"]),
    st.sampled_from([Api.CHAT, Api.EMBEDDINGS, Api.OPAQUE]),
)
@settings(max_examples=examples(50), deadline=None)
def test_a_request_goes_to_the_endpoint_that_its_token_names(tokens, policy, api):
    d = director_of(*SPECS, policy=policy, plugins=build_plugins({"session-token": {}}))
    known = {b64encode(name.encode()).decode(): n for n, name in enumerate(NAMES)}
    for token in tokens:
        decision = d.decide(asked(token, api=api), 0.0)
        assert told(d, decision) == b64encode(NAMES[decision.slot].encode()).decode()
        if token in known:
            assert decision.slot == known[token]


def test_nobody_gets_a_token_unless_the_settings_ask_for_it():
    d = director_of(*SPECS, plugins=own())
    token = b64encode(NAMES[0].encode()).decode()
    decisions = [d.decide(asked(token), 0.0) for _ in range(9)]
    assert not any(decision.parts for decision in decisions)
    assert len({decision.slot for decision in decisions}) > 1


@pytest.mark.envoy
@pytest.mark.parametrize("shape", ["standalone", "gateway", "full-duplex"])
async def test_a_session_stays_with_its_engine_behind_envoy(gateway, http, figure, shape):
    engines = [await gateway.upstream() for _ in range(3)]
    gateway.members(*((engine.address, "m") for engine in engines))
    await gateway.picker(routing={"plugins": {"session-token": {}}, "policy": "round-robin"})
    envoy, moved = await gateway.envoy(shape), 0
    for _ in range(3):
        begun = await post(http, envoy, chat("a story"))
        home = begun.headers["x-upstream"]
        for _ in range(4):
            token = {"x-session-token": begun.headers["x-session-token"]}
            begun = await post(http, envoy, chat("go on"), **token)
            moved += begun.headers["x-upstream"] != home
            assert len(begun.headers.getall("x-session-token")) == 1
    figure("turns with llm-d's session token at another engine", moved, "0 of 12")
    assert moved == 0
