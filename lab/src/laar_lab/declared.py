"""An experiment's declaration, with its claims: a YAML file beside its module, written before runs.

    gorgo-live:
      about: Frozen weights have a better tail than a climb on live traffic
      source: GORGO, section 5, freezing
      minutes: 0.35
      claims:
        live-tail:
          says: The published climb, live, has a longer p99 TTFT than frozen weights
          metric: p99 TTFT live / frozen
          asks: ratio above 1
          published: 7.2 s live against 2.1 s frozen
          paper: GORGO, section 6, freezing

`asks` names the effect, the direction and the bound of a claim; a bound may be a quotient, such as
8.9/13.7. A claim has the experiment's `seeds` and, if it has a published figure, its `source` for
`paper`, unless it says otherwise. All other keys are the arguments of `Experiment` and `Claim`.
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
    """Return the experiments that a module's YAML file declares, each with the function it runs.

    Raises:
        ValueError: the file declares others than those that have a function.
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
