"""The objectives and rewrites of several pools take effect on a stream."""

import random

import orjson
import pytest

from laar.protocol.events import Ask, RequestBody, RequestHeaders, Shape
from laar.protocol.rules import GatewayRules, Rewrite
from laar.protocol.stream import Environment, Stream, StreamSettings


@pytest.fixture
def rules():
    return GatewayRules(random.Random(1))


def rule(target, *models):
    return Rewrite(models=frozenset(models), targets=(target,), weights=(1,))


def asked(rules, model, pool="", **headers):
    """Return the request for which a stream asks for a decision."""
    stream = Stream(Environment(settings=StreamSettings(), new_id=lambda: "id", rules=rules))
    head = {":path": "/v1/completions", ":method": "POST", **headers}
    stream.receive(RequestHeaders(head, False, Shape.GATEWAY, pool=pool), 0.0)
    body = orjson.dumps({"model": model, "prompt": "hello"})
    [ask] = stream.receive(RequestBody(body, True), 0.0)
    assert isinstance(ask, Ask)
    return ask.request


def test_a_rewrite_precedes_the_header_and_the_header_precedes_the_body(rules):
    header = {"x-gateway-model-name-rewrite": "by-header"}
    assert asked(rules, "public").model == "public"
    assert asked(rules, "public", **header).model == "by-header"
    rules.replace_rewrites("kubernetes ml/a", "a", [rule("by-rule", "public")])
    assert asked(rules, "public", **header).model == "by-rule"
    assert asked(rules, "other", **header).model == "by-header"


def test_a_rule_for_any_model_applies_only_if_there_is_a_single_pool(rules):
    rules.replace_rewrites("kubernetes ml/a", "a", [rule("exact", "m"), rule("any")])
    assert (rules.rewrite("m"), rules.rewrite("other")) == ("exact", "any")
    rules.replace_rewrites("kubernetes ml/b", "b", [])
    assert (rules.rewrite("m"), rules.rewrite("other")) == ("exact", None)


def test_a_request_to_a_pool_follows_the_rules_of_that_pool(rules):
    for pool, priority in (("a", 10), ("b", -1)):
        source = f"kubernetes ml/{pool}"
        rules.replace_priorities(source, pool, {"gold": priority})
        rules.replace_rewrites(source, pool, [rule(f"chat-{pool}", "chat"), rule(f"any-{pool}")])
    rules.replace_priorities("kubernetes ml/c", "c", {})
    rules.replace_rewrites("kubernetes ml/c", "c", [])
    for pool, chat, other, priority in (
        ("", "chat-a", "m", 10),
        ("a", "chat-a", "any-a", 10),
        ("b", "chat-b", "any-b", -1),
        ("c", "chat", "m", 0),
        ("of a file", "chat", "m", 0),
    ):
        request = asked(rules, "chat", pool, **{"x-gateway-inference-objective": "gold"})
        assert (request.model, request.priority) == (chat, priority), pool
        assert asked(rules, "m", pool).model == other, pool
