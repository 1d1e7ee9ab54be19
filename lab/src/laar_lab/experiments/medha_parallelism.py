"""Figures 11 and 12 of Medha: KV parallelism against a deeper pipeline on the same devices.

Llama-3 70B on 64 H100: 8 stages of 8 (2D), or 4 stages of 8 with two KV groups (3D), under
ShareGPT-like requests with 5 % long prompts scaled to 2M tokens. The published claim is that the
two have alike first tokens and that 3D halves the time between tokens at 1.75 requests/s.

The meaning of the target of 20 ms decides it. "Every scheduling cycle must complete within
t_target" (4.3): in a pipeline a cycle is the work of one stage on a batch, and a token takes as
many as there are stages; so read, the published factor is that of the stages, 8 by 4. Elsewhere
laar's engine model gives the target to the whole pass, since a client waits for a pass between
tokens. Then both layouts keep to it and nothing is left to halve, as the second table shows.

At 1.75 requests/s the long prompts alone are several times the devices' capacity. Whether half
of the short ones then wait for late long ones (see `medha-policies`) or not quite half differs by
seed and layout, so the ratio of the medians of the first token spreads by more than the factor
checked.
"""

from __future__ import annotations

from dataclasses import replace

from laar_lab.claims import Seen
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.medha_runs import percentile, run
from laar_lab.report import Report, Table, Value
from laar_lab.sim.engine import EngineProfile, RooflineCost, load_hardware, load_model, load_profile
from laar_lab.statistics import estimate
from laar_lab.sweep import grid
from laar_lab.workloads.medha_mix import Mix

_RATES = (0.25, 0.75, 1.25, 1.75)
_LONG_SCALE = 2.0
_LAYOUTS = {"2D: 8 stages": (8, 1), "3D: 4 stages, 2 KV groups": (4, 2)}
_HALF = "half: 4 stages"
"""Half of the devices: the effect of the stages without the KV groups."""
_SHAPES = _LAYOUTS | {_HALF: (4, 1)}
_PASS_SHARE = 0.2
"""Share of the duration: a target for the pass means as many more iterations as there are
stages."""
_PERCENTS = (50.0, 90.0)
_Figures = tuple[float, float, float, float]


def _profile(layout: str, target: str) -> EngineProfile:
    stages, groups = _SHAPES[layout]
    cost = RooflineCost(
        load_hardware("h100"),
        load_model("llama-3-70b"),
        tensor=8,
        stages=stages,
        kv_parallel=groups,
    )
    settings = load_profile("llama-3-70b-h100").settings
    slack = settings.slack
    if target == "cycle":
        slack = replace(slack, target_s=slack.target_s * stages)
    settings = replace(settings, num_blocks=cost.kv_tokens() // 16, slack=slack)
    return EngineProfile(name=layout, cost=cost, settings=settings)


def latencies(layout: str, target: str, mix: Mix, seed: int) -> _Figures:
    """Median and 90th percentile of the first token and of the time between tokens, seconds."""
    seen = run(_profile(layout, target), mix, seed)
    ttft, tpot = (
        [percentile(values, p) for p in _PERCENTS] for values in (seen.ttft_s, seen.tpot_s)
    )
    return ttft[0], ttft[1], tpot[0], tpot[1]


def run_parallelism(scope: Scope) -> Report:
    """Both layouts at every load, and at the highest one with the other reading of the target."""
    duration_s = 40.0 if scope.quick else 600.0
    rates = (_RATES[0], _RATES[-1]) if scope.quick else _RATES
    high = rates[-1]
    settings = [("cycle", rate, duration_s) for rate in rates]
    settings.append(("pass", high, duration_s * _PASS_SHARE))
    runs = [(layout, *setting) for setting in settings for layout in _LAYOUTS]
    runs.append((_HALF, "cycle", high, duration_s))
    cases = {
        (layout, target, rate): (
            layout,
            target,
            Mix(rate=rate, duration_s=length_s, long_scale=_LONG_SCALE),
        )
        for layout, target, rate, length_s in runs
    }
    figures = grid(latencies, cases, scope.seeds, label="medha-parallelism")

    def of(layout: str, target: str, rate: float, what: int, unit: float = 1.0) -> list[float]:
        return [unit * one[what] for one in figures[layout, target, rate]]

    def table(target: str) -> Table:
        rows: list[tuple[Value, ...]] = [
            (
                f"{layout}, {rate:g} requests/s",
                *(estimate(of(layout, target, rate, what)) for what in (0, 1)),
                *(estimate(of(layout, target, rate, what, 1e3)) for what in (2, 3)),
            )
            for kind, rate, _ in settings
            if kind == target
            for layout in _SHAPES
            if (layout, target, rate) in figures
        ]
        return Table(
            title=f"First token in s, time between tokens in ms; target for a {target}",
            columns=("layout", "TTFT p50", "TTFT p90", "TPOT p50", "TPOT p90"),
            rows=rows,
        )

    flat, deep = _LAYOUTS

    def both(target: str, rate: float, what: int) -> Seen:
        return Seen(of(flat, target, rate, what), of(deep, target, rate, what))

    def apart(one: str, other: str) -> dict[str, Seen]:
        return {
            name: Seen(of(one, "cycle", high, what), of(other, "cycle", high, what))
            for what, name in ((2, "p50"), (3, "p90"))
        }

    return Report(
        tables=[table("cycle"), table("pass")],
        evidence={
            "tpot": {name: both("cycle", high, what) for what, name in ((2, "p50"), (3, "p90"))},
            "tpot-pass": {
                name: both("pass", high, what) for what, name in ((2, "p50"), (3, "p90"))
            },
            "ttft": {"": both("cycle", rates[0], 0)},
            "stages-alone": apart(flat, _HALF),
            "groups-alone": apart(_HALF, deep),
        },
    )


EXPERIMENTS = declared(__name__, {"medha-parallelism": run_parallelism})
