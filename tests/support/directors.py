"""Directors of endpoints that were never read, for tests of decisions."""

from __future__ import annotations

import random
from typing import Any

from laar.core.cost import CostWeights
from laar.core.decision import DirectorSettings
from laar.core.director import Director
from laar.core.endpoints import EndpointTable
from laar.core.membership import EndpointSpec
from laar.policies import build_policies


def table_of(*endpoints: EndpointSpec | str) -> EndpointTable:
    """Return a table with the source ``t``; an address alone stands for an engine of model m."""
    table = EndpointTable()
    specs = (EndpointSpec(address=e, models=("m",)) if isinstance(e, str) else e for e in endpoints)
    table.replace("t", specs)
    return table


def director_of(*endpoints: EndpointSpec | str, seed: int = 1, **given: Any) -> Director:
    """Return a director; `given` are settings of its decisions, or parts of it by their names."""
    known = DirectorSettings.__dataclass_fields__
    settings = {name: value for name, value in given.items() if name in known}
    parts = {name: value for name, value in given.items() if name not in known}
    return Director(
        table_of(*endpoints),
        parts.pop("policies", None) or build_policies(CostWeights()),
        DirectorSettings(**settings),
        rng=random.Random(seed),
        **parts,
    )
