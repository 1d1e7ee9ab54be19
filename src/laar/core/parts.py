"""What a director shares with the classes that decide and learn for it."""

from __future__ import annotations

import random
from typing import NamedTuple

from laar.core.adapters import Adapters
from laar.core.endpoints import EndpointTable
from laar.core.engines import Engines
from laar.core.guards import Faults
from laar.core.interfaces import Assessor
from laar.core.stored import StoredObjects
from laar.health import Health
from laar.prefix.beliefs import PrefixBeliefs


class Parts(NamedTuple):
    """The parts that contribute to decisions.

    Args:
        table: the endpoints.
        rng: breaks ties and makes the choices of random policies.
        assessor: estimates models.
        prefixes: estimates caches; None means no estimates.
        engines: the learned speed of engines.
        health: tracks which endpoints answer; None to assume that all do.
        stored: the endpoints that store objects of the APIs.
        adapters: the adapters that endpoints have loaded.
        faults: counts the parts that failed.
    """

    table: EndpointTable
    rng: random.Random
    assessor: Assessor
    prefixes: PrefixBeliefs | None
    engines: Engines
    health: Health | None
    stored: StoredObjects
    adapters: Adapters
    faults: Faults
