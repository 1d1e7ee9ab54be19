"""Policy parts from installed packages are found by name, checked, and fail no request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from laar.cli import app
from laar.core.cost import CostWeights
from laar.core.director import Director
from laar.fleet.membership import EndpointSpec
from laar.policies import PartUse, PickerUse, Profile, ScorerUse, build_policies
from laar.request import Api, Request
from laar.server.admin.explain import explain, read_request
from laar.server.picker import Picker
from laar.settings import load
from laar.testing import make_view
from laar_lab.policy_text import parse_policy
from support.directors import director_of
from support.plugins import install, installed

PARTS = '''
import numpy as np
import laar

class Even:
    def __init__(self, *, value: float = 0.5, name: str = "x", top: int = 3, on: bool = True):
        self.value = value
    def score(self, view):
        return np.full(len(view.slots), self.value)

class Broken:
    """Breaks a promise, the one that it is asked to break."""
    def __init__(self, how: str):
        self.how = how
    def score(self, view):
        n = len(view.slots)
        if self.how == "raise":
            raise KeyError(view.request.spans[0])
        if self.how == "write":
            view.rtt_s *= 0.0
        if self.how == "reason":
            view.reason = f"seen-{view.now:.0f}"
        return {"nan": np.full(n, np.nan), "shape": np.ones(n + 1), "text": ["a"] * n,
                "none": None, "seven": np.full(n, 7.0)}.get(self.how, np.linspace(1, 0, n))
    def keep(self, view):
        n = len(view.slots)
        return {"shape": np.ones(n + 1, bool), "numbers": np.ones(n),
                "all": np.zeros(n, bool)}[self.how]
    def order(self, scores, view):
        return {"short": [0], "twice": [0] * len(scores), "text": "no"}[self.how]

class LastFirst:
    def order(self, scores, view):
        return list(range(len(scores)))[::-1]

def mine(*, share: float = 1.0):
    return laar.Policy(name="mine", scorers=[(Even(value=share), 1.0)], picker=LastFirst())

def picky(*, size: float = 1.0):
    raise ValueError("size is too small")

number = 7
'''
POINTS = {
    "laar.scorers": {
        "even": "parts:Even",
        "broken": "parts:Broken",
        "laar": "parts:Even",
        "gone": "parts:Gone",
        "missing": "no_such_module:X",
        "number": "parts:number",
        "picky": "parts:picky",
    },
    "laar.filters": {"broken": "parts:Broken"},
    "laar.pickers": {"broken": "parts:Broken", "last-first": "parts:LastFirst"},
    "laar.policies": {"mine": "parts:mine", "even": "parts:Even", "twice": "parts:mine"},
}


@pytest.fixture(autouse=True)
def packages(tmp_path: Path) -> Iterator[None]:
    """Install two packages: one with all parts that the tests need, one with a duplicate name."""
    site, other = tmp_path / "site", tmp_path / "other"
    install(site, "some-parts", POINTS)
    install(other, "more-parts", {"laar.policies": {"twice": "other_parts:mine"}})
    (site / "parts.py").write_text(PARTS)
    with installed(site, other):
        yield


def composed(*scorers: ScorerUse, picker: str = "max-score", **more: Any) -> Any:
    """Return a policy with these scorers."""
    profile = Profile(scorers=scorers, picker=PickerUse(name=picker, **more))
    return build_policies(CostWeights(), profiles={"p": profile})["p"]


def checked(directory: Path, **routing: Any) -> str:
    """Return the output of `laar check` for these settings on one line."""
    document = {"endpoints": [{"address": "127.0.0.1:1", "model": "m"}], "routing": routing}
    (directory / "laar.yaml").write_text(yaml.safe_dump(document))
    result = CliRunner().invoke(app, ["check", "--no-ports", "-c", str(directory / "laar.yaml")])
    assert result.exit_code == (0 if "  policy:" in result.output else 2)
    return " ".join(result.output.replace("\n", " ").split())


def scorers(name: str, /, **parameters: Any) -> dict[str, Any]:
    """Return settings with a policy of one scorer."""
    return {"policies": {"p": {"scorers": [{"name": name, "parameters": parameters}]}}}


@pytest.mark.parametrize(
    ("routing", "said"),
    [
        ({"policy": "nope"}, "routing.policy: unknown policy `nope`; known: laar, load-aware,"),
        ({"policy": "nope"}, "mine, "),
        (scorers("nope"), "routing.policies: p: unknown scorer `nope`; known: laar, queue,"),
        (scorers("gone"), "entry point `gone = parts:Gone` of some-parts 1.0, group laar.scorers, "
         "cannot be loaded: AttributeError"),
        (scorers("missing"), "No module named 'no_such_module'; install what it needs or another "
         "version of some-parts 1.0, or remove `missing` from the settings"),
        (scorers("number"), "is a int; it must refer to a class or function"),
        (scorers("picky"), "laar.yaml:5: routing.policies: p: scorer `picky` (entry point `picky = "
         "parts:picky` of some-parts 1.0): cannot be created: ValueError: size is too small"),
        (scorers("even", x=1), "unknown parameter `x`; known: value, name, top, on"),
        (scorers("even", value="a"), "`value` is 'a'; give a finite number"),
        (scorers("even", top=1.5), "`top` is 1.5; give a whole number"),
        (scorers("load-aware", threshold=-1), "`threshold` is -1; give 0 to 1e9"),
        (scorers("even", name=1), "`name` is 1; give a string"),
        (scorers("even", on=1), "`on` is 1; give true or false"),
        (scorers("broken"), "its parameter `how` is missing"),
        (scorers("broken", how=[1]), "`how` is [1]; give a string, a finite number, or true"),
        ({"policy": "twice"}, "the packages more-parts 1.0 and some-parts 1.0 both provide it"),
        ({"policy": "even"}, "policy `even` (entry point `even = parts:Even` of some-parts 1.0): "
         "returns a Even; it must return a `laar.Policy`"),
        ({"baselines": {"mine": {"x": 1}}}, "unknown parameter `x`; known: share"),
        ({"policies": {"random": {"scorers": [{"name": "even"}]}}}, "laar has a policy `random`"),
        ({"policies": {"A b": {"scorers": [{"name": "even"}]}}}, "`A b` is not a policy name"),
        ({"policies": {"p": {"scorers": []}}}, "routing.policies: p: give at least one scorer"),
        ({"policies": {"p": {"scorers": [{"name": "even", "heavy": 1}]}}}, "unknown key"),
        ({"policies": {"p": {"scorers": [{"name": "even", "weight": 0}]}}}, "it must be above 0"),
    ],
)  # fmt: skip
def test_laar_check_reports_package_entry_point_and_fix(
    tmp_path: Path, routing: dict[str, Any], said: str
) -> None:
    printed = checked(tmp_path, **routing)
    assert said in printed
    assert "at least 1 item" not in printed


@pytest.mark.long
def test_a_plugin_is_used_by_name_in_a_policy_and_on_the_command_line(
    tmp_path: Path,
) -> None:
    routing = {
        "policy": "mine",
        "baselines": {"mine": {"share": 0.25}},
        "policies": {
            "p": {"scorers": [{"name": "queue"}, {"name": "even", "parameters": {"value": 0.25}}]}
        },
    }
    assert "policy: mine" in checked(tmp_path, **routing)
    picker = Picker(load(tmp_path / "laar.yaml").settings, seed=1)
    view = make_view(3)
    mine = picker.director.chooser.policies["mine"]
    assert mine.score(view).tolist() == [0.25] * 3
    assert mine.order(mine.score(view), view, ()) == [2, 1, 0]
    assert picker.director.chooser.policies["p"].score(view).tolist() == [0.625] * 3, (
        "of scores 1 and 0.25"
    )
    assert parse_policy("mine:share=0.5") == ("mine", {"share": 0.5})


def with_faults(policy: Any) -> tuple[Director, list[str]]:
    """Return a director of three endpoints, and the list of its reports on failing parts."""
    faults: list[str] = []
    director = director_of(
        *(f"10.0.0.{i}:80" for i in range(3)),
        policies={"p": policy},
        policy="p",
        on_fault=lambda fault: faults.append(f"{fault.part} {fault.extension.name}"),
    )
    return director, faults


def request(text: str = "a secret") -> Request:
    return Request(id="r", api=Api.CHAT, model="m", spans=(text,), chars=400)


@pytest.mark.parametrize("how", ["raise", "write", "nan", "shape", "text", "none"])
def test_a_scorer_that_breaks_the_contract_is_skipped_with_a_reason(how: str) -> None:
    broken = ScorerUse(name="broken", weight=9.0, parameters={"how": how})
    director, faults = with_faults(composed(broken, ScorerUse(name="least-loaded")))
    director.table.reserve(0, 1.0, 1.0)
    director.table.reserve(1, 1.0, 1.0)
    decision = director.decide(request(), 0.0)
    assert decision.reason == "degraded-scorer"
    assert decision.address == "10.0.0.2:80", "the other scorer decides"
    assert director.degraded["scorer"] == 1
    assert faults == ["scorer broken"]
    alone, _ = with_faults(composed(broken))
    alone.table.reserve(0, 1.0, 1.0)
    assert alone.decide(request(), 0.0).address != "10.0.0.0:80", "the number in flight decides"


def test_scores_are_clamped_and_the_reason_of_a_scorer_is_dropped() -> None:
    seven = composed(ScorerUse(name="broken", parameters={"how": "seven"}))
    assert seven.score(make_view(3)).tolist() == [1.0] * 3
    talker = composed(ScorerUse(name="broken", parameters={"how": "reason"}))
    director, _ = with_faults(talker)
    assert director.decide(request(), 0.0).reason == "p"


@pytest.mark.parametrize("how", ["shape", "numbers", "all"])
def test_a_filter_that_breaks_the_contract_or_keeps_nothing_is_skipped(how: str) -> None:
    profile = Profile(
        filters=(PartUse(name="broken", parameters={"how": how}),),
        scorers=(ScorerUse(name="even"),),
        picker=PickerUse(name="last-first"),
    )
    policy = build_policies(CostWeights(), profiles={"p": profile})["p"]
    director, faults = with_faults(policy)
    decision = director.decide(request(), 0.0)
    assert decision.address == "10.0.0.2:80"
    assert decision.reason == ("p" if how == "all" else "degraded-filter")
    assert faults == ([] if how == "all" else ["filter broken"])


@pytest.mark.parametrize("how", ["short", "twice", "text"])
def test_a_picker_that_breaks_the_contract_is_replaced_by_the_best_score(how: str) -> None:
    policy = composed(ScorerUse(name="least-loaded"), picker="broken", parameters={"how": how})
    director, faults = with_faults(policy)
    director.table.reserve(0, 1.0, 1.0)
    director.table.reserve(2, 1.0, 1.0)
    decision = director.decide(request(), 0.0)
    assert (decision.address, decision.reason) == ("10.0.0.1:80", "degraded-picker")
    assert faults == ["picker broken"]


def test_a_failing_part_is_reported_with_its_line_and_without_the_prompt(tmp_path: Path) -> None:
    checked(tmp_path, policy="p", **scorers("broken", how="raise"))
    picker = Picker(load(tmp_path / "laar.yaml").settings, seed=1)
    picker.table.replace("test", [EndpointSpec(address="10.0.0.1:80", models=("m",))])
    body = b'{"model": "m", "messages": [{"role": "user", "content": "a secret"}]}'
    told: Any = explain(picker, read_request(picker, body, {}))
    assert "A scorer of the policy failed" in told["sentence"]
    message = picker.problems["degraded scorer broken"]
    assert "KeyError at " in message
    assert "parts.py:" in message
    assert "secret" not in str(dict(picker.problems))


@pytest.mark.long
def test_policies_keep_their_state_unless_their_parameters_change(tmp_path: Path) -> None:
    both = {"even": {"scorers": [{"name": "even"}]}, **scorers("broken", how="raise")["policies"]}
    checked(tmp_path, policies=both)
    picker = Picker(load(tmp_path / "laar.yaml").settings, seed=1)
    before = dict(picker.director.chooser.policies)

    def kept() -> set[str]:
        settings = load(tmp_path / "laar.yaml").settings
        routing = settings.routing
        fresh = build_policies(routing.weights, routing.given, routing.policies)
        picker.apply(settings, picker.learning.assessor.capability, fresh)
        return {
            name
            for name, policy in picker.director.chooser.policies.items()
            if policy is before.get(name)
        }

    checked(tmp_path, policies=both, policy="mine")
    assert kept() == set(before)
    assert set(picker.director.chooser.policies) == {*before, "mine"}
    checked(tmp_path, policies=both)
    assert kept() == set(picker.director.chooser.policies) == set(before)
    both["p"]["scorers"][0]["parameters"]["how"] = "nan"
    checked(tmp_path, policies=both)
    assert kept() == set()
