"""Directors of endpoints that were never read, for tests of decisions."""

from __future__ import annotations

import random
from dataclasses import fields
from typing import Any

from laar.core.cost import CostWeights
from laar.core.decision import DirectorSettings
from laar.core.director import Director
from laar.fleet.endpoints import EndpointTable
from laar.fleet.membership import EndpointSpec
from laar.plugins import own
from laar.plugins.apart import ApartSettings
from laar.plugins.modes import ModesSettings
from laar.policies import build_policies

_SETTINGS = (DirectorSettings, ModesSettings, ApartSettings)


def table_of(*endpoints: EndpointSpec | str) -> EndpointTable:
    """Return a table with the source ``t``; an address alone stands for an engine of model m."""
    table = EndpointTable()
    table.replace("t", map(_spec_of, endpoints))
    return table


def _spec_of(endpoint: EndpointSpec | str) -> EndpointSpec:
    return EndpointSpec(address=endpoint, models=("m",)) if isinstance(endpoint, str) else endpoint


def director_of(*endpoints: EndpointSpec | str, seed: int = 1, **given: Any) -> Director:
    """Return a director; `given` are its settings, and its parts by the names of its arguments."""
    settings, *of_plugins = [
        kind(**{each.name: given.pop(each.name) for each in fields(kind) if each.name in given})
        for kind in _SETTINGS
    ]
    policies = given.pop("policies", None) or build_policies(CostWeights())
    rng = random.Random(seed)
    given.setdefault("plugins", own())
    director = Director(table_of(*endpoints), policies, settings, rng=rng, **given)
    director.plugins.use(*of_plugins)
    return director
