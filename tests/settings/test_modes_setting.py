"""Modes in the settings file: members by API, and a clear error for what is none."""

from __future__ import annotations

import pytest
import yaml

from laar.errors import SettingError
from laar.plugins.modes import kept_members
from laar.request import LIMITS
from laar.settings import load
from laar.settings.ignored import remarks


def loaded(tmp_path, mode, name="fast"):
    path = tmp_path / "laar.yaml"
    endpoints = [{"address": "10.0.0.1:80", "models": ["other"]}]
    modes = {"qwen": {name: mode}}
    path.write_text(yaml.safe_dump({"endpoints": endpoints, "routing": {"modes": modes}}))
    return load(path)


@pytest.mark.parametrize(
    "mode",
    [
        {"chat": {"reasoning_effort": "low"}, "own_prefix": True},
        {"chat": {"chat_template_kwargs": {"enable_thinking": False}, "max_tokens": 500}},
        {"responses": {"reasoning": {"effort": "low"}}, "messages": {"thinking": {"type": "x"}}},
        {"completions": {"temperature": 0, "stop": ["\n"], "logit_bias": {"1": -5}, "min_p": None}},
    ],
)
def test_modes_are_members_of_bodies_by_api(tmp_path, mode):
    read = loaded(tmp_path, mode)
    (of,) = read.settings.routing.asking.modes["qwen"].values()
    assert {api.value: dict(members) for api, members in of.members.items()} == {
        name: members for name, members in mode.items() if name != "own_prefix"
    }
    kept = kept_members(read.settings.routing.asking.modes)
    assert kept is not None
    assert kept >= {name for members in of.members.values() for name in members}
    assert kept.isdisjoint(LIMITS) or kept >= set(LIMITS), "a client's limit has several names"
    assert [line for line in remarks(read) if "routing.modes.qwen: unknown model `qwen`" in line]


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ({}, "give members"),
        ({"own_prefix": True}, "give members"),
        ({"reasoning_effort": "low"}, "unknown key `reasoning_effort`; known: chat, completions"),
        ({"chat": {"messages": [{"role": "user", "content": "x"}]}}, "may not set"),
        ({"chat": {"tools": [{"type": "function"}]}}, "may not set"),
        ({"chat": {"cache_salt": "x"}}, "may not set"),
        ({"chat": {"model": "x"}}, "may not set"),
        ({"chat": {"stream": True}}, "may not set"),
        ({"messages": {"system": "x"}}, "may not set"),
        ({"responses": {"previous_response_id": "x"}}, "may not set"),
        ({"chat": {"kv_transfer_params": {"remote_host": "x"}}}, "may not be set"),
        ({"chat": 5}, "map of keys"),
    ],
)
def test_an_unusable_mode_is_refused_with_its_place(tmp_path, mode, said):
    with pytest.raises(SettingError, match=said) as raised:
        loaded(tmp_path, mode)
    assert "laar.yaml:" in str(raised.value)
    assert "routing.modes" in str(raised.value)


@pytest.mark.parametrize("name", ["", "Low", "a:b", "a b", "a,b", "-a", "a/b", "x" * 65])
def test_names_are_short_words(tmp_path, name):
    with pytest.raises(SettingError, match="mode's name"):
        loaded(tmp_path, {"chat": {"x": 1}}, name)
