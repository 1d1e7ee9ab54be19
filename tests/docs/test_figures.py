"""Every figure of README is printed by a command that the page it links names."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import orjson
import pytest

from laar_lab.results import load

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")

SOURCES = {
    "exceed the caches 2 and 3.4 times": ("docs/race/gpu.md", "laar race"),
    "1.8 and 2.3 times the answers a second": ("docs/race/gpu.md", "laar race"),
    ".55 of the median time": ("docs/race/gpu.md", "laar race"),
    "19 to 83 % of the traffic": ("docs/guides/failures.md", "python -m bench failing"),
    "8 users who ask until one is right": ("lab/claims.md", "laar lab run right-soonest"),
    ".73 of the time": ("lab/claims.md", "laar lab run right-soonest"),
    "one picker, 1 KB requests": ("README.md", "python -m bench picker"),
    "1 to 1,000 endpoints": ("README.md", "python -m bench picker"),
    "SMG answers 3 % more requests": ("docs/race/README.md", "laar race"),
}
"""A phrase with figures; a page that README links, or README, and the command there."""
VERSIONS = re.compile(r"(?:Python|Envoy|vLLM|SGLang|Before|to)\s+\d\.\d+(?:\.\d+)?")
COSTS = README.partition("## What it costs")[2].partition("\n## ")[0]


def prose(markdown: str) -> str:
    """Return the text without code, addresses of links and versions."""
    text = re.sub(r"^ {4}.*$|^```.*?^```$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    return VERSIONS.sub("", re.sub(r"\]\([^)]*\)|`[^`]*`", "", text))


def test_every_figure_has_a_source() -> None:
    text = prose(README.replace(COSTS, ""))
    for phrase in SOURCES:
        text = text.replace(phrase, "")
    assert re.findall(r".*\d.*", text) == []


@pytest.mark.parametrize("phrase", SOURCES)
def test_the_page_names_the_command(phrase: str) -> None:
    page, command = SOURCES[phrase]
    assert phrase in README
    assert command in (ROOT / page).read_text("utf-8")


def test_what_chance_of_being_right_gains_is_what_is_stored() -> None:
    evidence = load(ROOT / "docs" / "results")["right-soonest"].evidence
    shown = [
        float(np.exp(np.mean(np.log(np.divide(seen.ours, seen.theirs)))))
        for part, seen in evidence["time-only"].items()
        if part.startswith("8 users")
    ]
    assert shown == [pytest.approx(0.73, abs=0.005)]


@pytest.mark.parametrize(
    ("races", "name", "says"),
    [
        ("agents-45*", "answers_per_s", 1.8),
        ("agents-68*", "answers_per_s", 2.3),
        ("third/agents-15*", "ttft_p50_s", 0.55),
    ],
)
def test_what_agents_gain_is_what_is_stored(races: str, name: str, says: float) -> None:
    logs = []
    for path in (ROOT / "docs/race/gpu").glob(f"{races}.json"):
        turns = orjson.loads(path.read_bytes())["turns"]
        seen = {(t["router"], t["repetition"]): t["numbers"][name] for t in turns}
        logs += [
            np.log(value / seen["vllm-router", repetition])
            for (router, repetition), value in seen.items()
            if router == "laar"
        ]
    assert len(logs) == 3
    assert float(np.exp(np.mean(logs))) == pytest.approx(says, rel=0.03)
