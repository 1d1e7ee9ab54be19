"""Names of models that were served, and have no endpoint now: it restarts, or is scaled to zero.

A client repeats a request after "not now" and gives up after "no such model", so the two must not
be confused. A name is remembered from when its last endpoint leaves, whatever the reason: a file
without it may have been edited by its owner, or written by a script while a pod restarts.

Only endpoints bring in names, never clients. First names, which sources give to endpoints, are
counted apart from the other names, which engines report: an engine that lists ever new names
displaces no model.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice, takewhile
from typing import NamedTuple

from laar.errors import RequestError
from laar.fleet.membership import EndpointSpec
from laar.fleet.names import Names
from laar.latest import Latest
from laar.request import Request

KEPT_S = 86_400.0
"""Seconds for which a name is remembered: models are scaled to zero for a night."""

MAX_MODELS = 1024
"""Maximum number of first names that are remembered, and of series of `AwayNames.requests`."""
MAX_OTHERS = 4096
"""Maximum number of other names, of adapters for example; at 256 bytes they take a megabyte."""

RETRY_AFTER_S = 5
"""Seconds after which a client should try again. The usual clients try three times, and an engine
that restarts needs more than the second that is given elsewhere."""

_MAY_COME = ("no-endpoints", "no-candidates", "model-away", "asleep")


class Away(NamedTuple):
    """A model that has no endpoint.

    Args:
        model: the first name of its endpoints.
        pools: the pools of its endpoints.
        since: monotonic seconds when its endpoints were found to be away; NaN until then.
    """

    name: str
    model: str
    pools: tuple[str, ...]
    since: float = math.nan

    @property
    def is_first(self) -> bool:
        """Whether this is the first name."""
        return self.name == self.model


class AwayNames:
    """The names that are remembered.

    Args:
        names: the names that endpoints serve now.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._kept: dict[bool, Latest[str, Away]] = {
            True: Latest(MAX_MODELS),
            False: Latest(MAX_OTHERS),
        }
        self.version = 0
        """Changes whenever the names do."""
        self.requests: Counter[tuple[str, str]] = Counter()
        """Requests that found no endpoint, by pool and model; what is not known is empty."""
        self.on_away: Callable[[Away], None] = lambda _away: None
        """Called with each name whose last endpoint has left."""

    def note(self, specs: Iterable[EndpointSpec]) -> None:
        """Remember the names of endpoints that leave, change, or will be used soon."""
        found: dict[str, tuple[str, set[str]]] = {}
        for spec in specs:
            for name in spec.models:  # thousands of endpoints have few names
                found.setdefault(name, (spec.models[0], set()))[1].update(spec.pools)
        for name, (model, pools) in found.items():
            self._kept[name == model][name] = Away(name, model, tuple(sorted(pools)))
            self.version += 1

    def hear(self, away: Away, now: float) -> None:
        """Remember a name that another picker has seen, or this one before it restarted."""
        self.look(now)  # undated names stay last
        known = self._kept[away.is_first].get(away.name)
        if now - KEPT_S < away.since <= now and (known is None or known.since < away.since):
            self._kept[away.is_first][away.name] = away
            self.version += 1

    def look(self, now: float) -> None:
        """Date the names that were noted since the last call, and forget the oldest."""
        for kept in self._kept.values():
            undated = takewhile(lambda away: math.isnan(away.since), reversed(kept.values()))
            for away in reversed(list(undated)):
                if self._names.serving(away.name) is not None:
                    del kept[away.name]
                else:
                    kept[away.name] = dated = away._replace(since=now)
                    self.on_away(dated)
            while kept and next(iter(kept.values())).since <= now - KEPT_S:
                kept.popitem(last=False)
                self.version += 1

    def get(self, name: str) -> Away | None:
        """Return what is remembered of a name, if anything is."""
        return self._kept[True].get(name) or self._kept[False].get(name)

    def __iter__(self) -> Iterator[Away]:
        """Iterate over the names that no endpoint serves."""
        every = chain(*(kept.values() for kept in self._kept.values()))
        return (away for away in every if self._names.serving(away.name) is None)

    def state(self, specs: Iterable[EndpointSpec], now: float) -> list[tuple[object, ...]]:
        """Return the names of endpoints and those that are away, each with its age in seconds."""
        self.look(now)
        served: dict[str, Away] = {}
        for spec in specs:
            for name in spec.models:
                if name not in served:
                    served[name] = Away(name, spec.models[0], tuple(spec.pools), now)
        every = islice(chain(served.values(), self), MAX_MODELS + MAX_OTHERS)
        return [(name, model, pools, now - since) for name, model, pools, since in every]

    def missed(self, request: Request) -> None:
        """Count a request that found no endpoint, for autoscalers that start the first one."""
        pool, model, names = request.pool, request.model, self._names
        known = self.get(model)
        if known is None and model not in names.aliases and names.serving(model) is None:
            model = ""
        if not len(names.in_pool(pool)) and (known is None or pool not in known.pools):
            pool = ""
        if (pool, model) in self.requests or len(self.requests) < MAX_MODELS:
            self.requests[pool, model] += 1


def is_away(name: str) -> RequestError:
    """Return the error for a model that was served, but has no endpoint now."""
    text = f"the model `{name[:200]}` has no endpoint at the moment"
    return RequestError(503, "model-away", text, retry_after_s=RETRY_AFTER_S)


def may_come(error: RequestError, request: Request) -> bool:
    """Return whether a request was refused only until an endpoint comes or wakes up.

    A removed endpoint may come back, but without the objects it stored.
    """
    any_would_do = request.subset is None and not (request.response_id or request.conversation_id)
    return error.reason in _MAY_COME and any_would_do
