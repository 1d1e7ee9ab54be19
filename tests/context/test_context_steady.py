"""Tools are sorted, and lines that differ between prompts are moved to the end."""

from __future__ import annotations

import json
import random
from time import process_time

import orjson
import pytest

from laar.context.hook import ContextHook
from laar.context.settings import ContextSettings, Reason

SORTED = ContextSettings(sort_tools=True)


def sent(body, settings, api="chat", mode="on"):
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    made = ContextHook(settings).apply(raw, api=api, tenant="", now=0.0, mode=mode)
    return made.reason, made.body


def asked(*tools, **fields):
    return {"messages": [{"role": "user", "content": "And?"}], "tools": list(tools), **fields}


def names(body):
    return [tool["name"] for tool in json.loads(body)["tools"]]


def test_tools_are_moved_without_changing_their_text():
    body = (
        b'{"messages": [{"role":"user","content":"And?"}], "tools": '
        b'[{"name":"b", "x":1.00} ,\n {"name":"a","y":"\\u0041"}], "n":1e1}'
    )
    want = body.replace(
        b'{"name":"b", "x":1.00} ,\n {"name":"a","y":"\\u0041"}',
        b'{"name":"a","y":"\\u0041"} ,\n {"name":"b", "x":1.00}',
    )
    assert sent(body, SORTED) == (Reason.STEADIED, want)


def test_any_order_of_the_same_tools_becomes_one_order():
    rng = random.Random(1)
    tools = [{"type": "function", "function": {"name": n, "parameters": {}}} for n in "dcbae"]
    tools += [{"type": "web_search"}, {"name": 3}, {"name": "a", "type": "custom"}]
    assert len({sent(asked(*rng.sample(tools, len(tools))), SORTED)[1] for _ in range(20)}) == 1


def test_a_tool_with_a_cache_mark_stays_and_no_tool_moves_past_it():
    marked = {"name": "m", "cache_control": {"type": "ephemeral"}}
    tools = [{"name": "z"}, {"name": "b"}, marked, {"name": "y"}, {"name": "a"}]
    _, made = sent(asked(*tools), SORTED, api="messages")
    assert names(made) == ["b", "z", "m", "a", "y"]
    nested = {"type": "function", "function": {"name": "m", "cache_control": {}}}
    _, made = sent(asked({"name": "z"}, nested, {"name": "a"}), SORTED)
    assert made == orjson.dumps(asked({"name": "z"}, nested, {"name": "a"}))


@pytest.mark.parametrize(
    "body",
    [
        asked({"name": "a"}, {"name": "b"}),
        asked({"name": "b"}),
        asked({"name": "b"}, "a"),
        asked(tools={"b": 1, "a": 2}),
        asked(tools=None),
        b'{"messages":[],"tools":[{"name":"b"},{"name":"a"}],"tools":[{"name":"b"},{"name":"a"}]}',
    ],
)
def test_sorted_tools_and_unusual_lists_are_unchanged(body):
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    assert sent(body, SORTED)[1] is raw or sent(body, SORTED)[1] == raw


def test_nothing_changes_without_the_setting_or_in_observe_mode():
    body = orjson.dumps(asked({"name": "b"}, {"name": "a"}))
    assert sent(body, ContextSettings())[1] is body
    assert sent(body, SORTED, mode="observe")[1] is body


LINES = ContextSettings(last_lines=("Today is", "Path:"))


def test_moved_lines_follow_the_last_text_of_the_user():
    system = "Be kind.\n  Today is Monday.\nBe terse.\nPath: /a"
    body = {
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Hi"},
            {"role": "user", "content": [{"type": "text", "text": "Look"}]},
            {"role": "assistant", "tool_calls": []},
            {"role": "tool", "content": "seen"},
        ]
    }
    reason, made = sent(body, LINES)
    assert reason is Reason.STEADIED
    body["messages"][0]["content"] = "Be kind.\nBe terse.\n"
    body["messages"][3]["content"][0]["text"] = "Look\n\nToday is Monday.\nPath: /a"
    assert json.loads(made) == body


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": "Be kind.\nToday is Monday."}],
        [{"role": "system", "content": "Today is Monday."}, {"role": "user", "content": "Hi"}],
        [
            {"role": "system", "content": "Be kind.\nToday is Monday.", "cache_control": {}},
            {"role": "user", "content": "Hi"},
        ],
        [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Today is it"}],
    ],
)
def test_lines_are_not_moved_if_there_is_no_text_of_the_user(messages):
    raw = orjson.dumps({"messages": messages})
    assert sent(raw, LINES)[1] is raw


def test_documents_after_a_moved_line_share_their_order():
    hook = ContextHook(ContextSettings(last_lines=("Today is",), holdout_share=0.0))

    def answered(day, ids):
        docs = "\n".join(f"<document name='d{i}'>{f'{i} word ' * 80}</document>" for i in ids)
        system = f"Be kind.\nToday is {day}.\n{docs}\nBe terse."
        user = {"role": "user", "content": "And?"}
        body = orjson.dumps({"messages": [{"role": "system", "content": system}, user]})
        made = hook.apply(body, api="chat", tenant="", now=0.0, mode="on")
        hook.commit(made, 0.0, endpoint="e")
        return json.loads(made.body)["messages"]

    first = answered("Monday", [2, 1, 3, 4])
    second = answered("Friday", [4, 2, 3, 1])
    start = second[0]["content"].partition("(The documents")[0]
    assert first[0]["content"].startswith(start.rstrip())
    assert second[1]["content"] == "And?\n\nToday is Friday."


def test_a_system_prompt_of_lines_to_move_takes_linear_time():
    system = "Rules.\n" + "".join(f"Today {n}\n" for n in range(100_000))
    body = {"messages": [{"role": "system", "content": system}, {"role": "user", "content": "?"}]}
    began = process_time()
    assert sent(body, ContextSettings(last_lines=("Today",)))[0] is Reason.STEADIED
    assert process_time() - began < 5.0
