"""Advice names the lines that break prefixes, for nine kinds of agents and for documents."""

import json
import random

import orjson
import pytest
from bench import bench_templates
from bench.prompts import corpora
from bench.prompts.templates import TEMPLATES

from laar.core.request import Api
from laar.prefix.templates import Template
from laar.protocol.openai import read_body
from laar_lab.advice import MAX_AGENTS, Advisor

ARRANGED = {
    "after the system prompt": Template(),
    "before it": Template(tools_first=True),
    "before the last message": Template(tools_last=True),
}


def advice(bodies, template=ARRANGED["after the system prompt"]):
    advisor = Advisor()
    for api, body in bodies:
        read = read_body(api, body)
        advisor.look(read.model, read.spans, template, body)
    return advisor.advice()


def chats(system, question, count=30, **more):
    """Return chats whose parts are derived from their number."""
    for n in range(count):
        messages = [
            {"role": "system", "content": system(n)},
            {"role": "user", "content": question(n)},
        ]
        yield Api.CHAT, orjson.dumps({"model": "m", "messages": messages, **more})


RULES = "\n".join(f"Rule {n}: keep the {n}th shelf of the archive in order." for n in range(40))


@pytest.mark.long
@pytest.mark.parametrize("arranged", ARRANGED)
@pytest.mark.parametrize(
    ("kind", "named", "saves"),
    [
        (
            "same system and tools",
            "Nothing breaks the prefixes; they diverge where the user's text",
            False,
        ),
        ("system differs at its top", "character 19 of the system prompt: a path", True),
        ("date on top of the system", "character 13 of the system prompt: an id", True),
        ("date at its end", "character 6014 of the system prompt: an id", True),
        ("tools in changing order", "The same tools come in 3", True),
        ("other tools for each user", "ools differ between prompts", None),
        ("reasoning in history", "leaves reasoning out of earlier answers", False),
        ("billing line, /v1/messages", "x-anthropic-billing-header changes", False),
        ("image in the first message", "diverge at an image", False),
    ],
)
def test_the_breaking_line_of_nine_kinds_of_agents_is_found(kind, named, saves, arranged):
    (told,) = advice(bench_templates.bodies(kind, 5), ARRANGED[arranged])
    assert named in " ".join(told["sentences"])
    if saves is not None:
        assert (told["could"] > told["found"] + 0.05) is saves
        assert ("of the prefill" in told["sentences"][-1]) is saves


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (lambda n: f"Current date: 2026-11-{n + 1:02d}", "14 of the system prompt: a date"),
        (lambda n: f"It is now {n % 24:02d}:{n:02d}:00.", "10 of the system prompt: a time"),
        (lambda n: f"Heute ist {['Montag', 'Dienstag'][n % 2]}, der {n + 1}. Mai", "a number"),
        (lambda n: f"今日は2026年11月{n + 1}日です。", "of the system prompt: "),
        (lambda n: f"You talk to {('Ada', 'Bob', 'Eve')[n % 3]}-{'x' * n}.", "12 of the system"),
        (lambda n: f"Dir: C:\\work\\p{n}\nBranch: b{n}\n M a{n}.py\n?? b.py", "5 of the system"),
        (lambda n: f'{{"session": "{n:08x}-1a2b", "n": {n}}}', "an id"),
        (lambda n: "".join(f" M file{k}.py\n" for k in range(n % 7)) + f"# {n}", "system prompt"),
    ],
)
@pytest.mark.parametrize("place", ["top", "middle", "end"])
def test_a_line_that_differs_is_found_at_any_position(line, named, place):
    half = len(RULES) // 2
    made = {
        "top": lambda n: f"{line(n)}\n{RULES}",
        "middle": lambda n: f"{RULES[:half]}\n{line(n)}\n{RULES[half:]}",
        "end": lambda n: f"{RULES}\n{line(n)}",
    }[place]
    tools = [{"type": "function", "function": {"name": "read", "description": RULES}}]
    (told,) = advice(chats(made, lambda n: f"How many are there of {n}?", tools=tools))
    if place == "top":
        assert named in told["sentences"][0]
    assert "system prompt: " in told["sentences"][0]
    assert told["could"] > 0.85 > 0.75 > told["found"]


@pytest.mark.parametrize(
    ("template", "named"),
    [
        ("langchain hub", "comes after the user's text"),
        ("langchain retriever tool", "comes after the user's text"),
        ("mcp parts", "comes after the user's text"),
        ("langchain stuff", "was seen in another order"),
        ("open webui", "was seen in another order"),
    ],
)
def test_documents_that_cannot_be_shared_are_reported(template, named):
    rng = random.Random(3)
    pool = corpora.chunks("pages", 30, rng)

    def bodies():
        for n in range(60):
            docs = [(at, pool[at]) for at in rng.sample(range(len(pool)), 6)]
            body = TEMPLATES[template](docs, f"What of {n} and {rng.random()}?")
            yield Api.MESSAGES if "system" in body else Api.CHAT, orjson.dumps(body)

    told = max(advice(bodies()), key=lambda each: each["prompts"])
    assert named in " ".join(told["sentences"])


def test_agents_are_distinguished_and_their_number_is_bounded():
    def bodies(agents):
        for n in range(12):
            for agent in range(agents):
                system = RULES.replace("archive", f"depot of agent {agent * 7919}")
                yield from chats(lambda _, s=system: s, lambda _, n=n: f"Question {n}?", 1)

    assert len(advice(bodies(5))) == 5
    assert len(advice(bodies(MAX_AGENTS + 5))) <= MAX_AGENTS


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": ""}]},
        {"messages": [{"role": "user", "content": "\n" * 9}], "tools": "x"},
        {"messages": [{"role": "user", "content": "a\n" * 5000}], "tools": [1, None, {"name": 2}]},
        {"messages": [{"role": 3, "content": [{"type": "x"}]}], "tools": {"a": 1}},
        {"messages": [{"role": "system", "content": "\ud800 torn"}], "tools": [[[[]]]]},
    ],
)
def test_any_client_body_is_accepted(body):
    read = read_body(Api.CHAT, json.dumps(body).encode())
    advisor = Advisor()
    for _ in range(20):
        advisor.look(read.model, read.spans, Template(), b"")
    assert len(advisor.advice()) <= 1
