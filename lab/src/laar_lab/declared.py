"""Read an experiment's declaration and claims from the YAML file next to its module.

    gorgo-heldout:
      about: GORGO's tuned score, frozen, beats its baselines on traces it was not tuned on
      source: GORGO, section 5, tables of 6 and 7 April
      minutes: 0.9
      claims:
        best-TTFT:
          says: GORGO, tuned and frozen, has a p95 TTFT 7 % below the best of its baselines
          metric: p95 TTFT, GORGO / the best of its baselines
          asks: ratio below 0.93
          published: 7 to 12 % less
          largest: 0.85

`asks` gives the effect, direction and bound of a claim; a bound may be a quotient, such as
8.9/13.7. By default, a claim's `seeds` are the experiment's; if it has a published figure, its
`paper` is the experiment's `source`. All other keys are the arguments of `Experiment` and `Claim`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib.resources import files
from typing import Any, cast

import yaml

from laar_lab.claims import Claim, Direction, Effect
from laar_lab.experiment import Experiment, Scope
from laar_lab.report import Report


def declared(module: str, runs: Mapping[str, Callable[[Scope], Report]]) -> tuple[Experiment, ...]:
    """Return the experiments declared in a module's YAML file, each with its run function.

    Raises:
        ValueError: the file does not declare exactly the experiments in `runs`.
    """
    package, _, name = module.rpartition(".")
    text = files(package).joinpath(f"{name}.yaml").read_text("utf-8")
    found: dict[str, dict[str, Any]] = yaml.safe_load(text)
    if found.keys() != runs.keys():
        raise ValueError(f"{name}.yaml declares {list(found)}, {name}.py runs {list(runs)}")
    return tuple(_experiment(name, runs[name], **about) for name, about in found.items())


def _experiment(
    name: str,
    run: Callable[[Scope], Report],
    *,
    claims: Mapping[str, Mapping[str, Any]],
    takes: Iterable[str] = (),
    **about: Any,
) -> Experiment:
    experiment = Experiment(name=name, run=run, takes=frozenset(takes), **about)
    rows = tuple(_claim(claim, experiment, **row) for claim, row in claims.items())
    return replace(experiment, claims=rows)


def _claim(name: str, of: Experiment, *, asks: str, published: str = "", **row: Any) -> Claim:
    effect, direction, bound = asks.split()
    dividend, _, divisor = bound.partition("/")
    given = {"seeds": of.seeds, "paper": of.source if published else "", **row}
    return Claim(
        name=name,
        effect=cast("Effect", effect),
        direction=cast("Direction", direction),
        bound=float(dividend) / float(divisor or 1.0),
        published=published,
        **given,
    )
