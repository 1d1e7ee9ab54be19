"""A field that names sessions is found by the prompts that come with its values."""

import random

import pytest

from laar.flow.naming import SessionNames
from laar.prefix.blocks import PromptHasher
from laar.request import Api, Request

HASHER = PromptHasher(b"k")


class Client:
    """Conversations of some users; `value` returns what a field says for one of their turns."""

    def __init__(self, value, *, seed=0, tenant="", keeps_end=0.5):
        self.value, self.tenant, self.keeps_end = value, tenant, keeps_end
        self.rng = random.Random(seed)
        self.texts = dict.fromkeys(range(5), "You are a helpful assistant. " * 40)
        self.turns = 0

    def send(self, names, turns=60):
        """Send turns in any order; return how many were named by the field."""
        named = 0
        for _ in range(turns):
            self.turns += 1
            user = self.rng.choice(list(self.texts))
            self.texts[user] += f"turn {self.turns} of {user}. " * self.rng.randint(5, 50)
            end = "" if self.rng.random() < self.keeps_end else f"it is {self.turns} o'clock " * 9
            hints = (("x-field", self.value(self, user)),)
            asked = Request(id="", api=Api.CHAT, tenant=self.tenant, hints=hints)
            names.name(asked)
            named += asked.named_by == "x-field"
            names.learn(asked, HASHER.chain_of((self.texts[user] + end).encode(), ""))
        return named


def test_a_value_for_each_conversation_names_it():
    names = SessionNames()
    client = Client(lambda _, user: f"conversation {user}")
    assert client.send(names) > 20
    assert client.send(names) == 60


@pytest.mark.parametrize(
    "value",
    [
        lambda _client, _user: "application",
        lambda client, _user: f"request {client.turns}",
        lambda client, _user: client.rng.choice("abc"),
        lambda client, _user: f"day {client.turns // 20}",
    ],
    ids=["application", "request", "shard", "day"],
)
def test_a_value_of_another_kind_names_no_session(value):
    names = SessionNames()
    client = Client(value)
    client.send(names)
    assert client.send(names) == 0


def test_a_field_is_judged_for_each_tenant_and_a_name_does_not_show_its_value():
    names = SessionNames()
    Client(lambda _, user: f"secret {user}", tenant="a").send(names)
    asked = [Request(id="", api=Api.CHAT, tenant=t, hints=(("x-field", "secret 1"),)) for t in "ab"]
    for request in asked:
        names.name(request)
    assert asked[0].session
    assert "secret" not in asked[0].session
    assert not asked[1].session


def test_many_fields_values_and_tenants_take_bounded_memory_and_no_name_from_others():
    names = SessionNames()
    client = Client(lambda _, user: f"conversation {user}", tenant="a")
    client.send(names)
    chain = HASHER.chain_of(b"x" * 200, "")
    for number in range(40_000):
        names.learn(Request(id="", api=Api.CHAT, hints=((f"{number}", f"{number}"),)), chain)
    assert client.send(names) == 60
    for number in range(1_000):
        hints = ((f"{number}", f"{number}"),)
        names.learn(Request(id="", api=Api.CHAT, tenant=f"{number}", hints=hints), chain)
    assert sum(map(len, names._fields.values())) <= 256
    assert len(names._values) <= 16_384
