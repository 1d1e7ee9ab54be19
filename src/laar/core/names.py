"""Find endpoints by the name of a model or pool, by address, or by IP; compare models' names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from laar.core.membership import EndpointSpec

_SEPARATORS = "-.:@_"


class Names:
    """The names of one set of endpoints; rebuilt when the set changes.

    Attributes:
        models: the distinct first entries of `EndpointSpec.models`, in the order of the slots.
        serving: slots of the endpoints that serve a model name, ascending.
        pools: slots of the endpoints labelled with a pool, by its name.
        weights: `EndpointTable.weights` by name; absent for names that use an endpoint's own model.

    Args:
        specs: the endpoints by slot, ascending.
        aliases: aliases and the names each stands for; an empty list means all.
    """

    def __init__(
        self, specs: Iterable[tuple[int, EndpointSpec]], aliases: Mapping[str, Sequence[str]]
    ) -> None:
        models: dict[str, None] = {}
        serving: dict[str, list[int]] = {}
        pools: dict[str, list[int]] = {}
        named: dict[str, list[int]] = {}
        adapted: set[str] = set()
        specs = list(specs)
        # An endpoint that has not reported yet is assumed to be like the others of its model.
        same = {(spec.models[0], name) for _, spec in specs for name in spec.same_weights}
        for slot, spec in specs:
            first, *others = spec.models
            models[first] = None
            adapted.update(
                name
                for name in others
                if name not in aliases and (name in spec.adapters or (first, name) not in same)
            )
            for name in dict.fromkeys(spec.models):
                serving.setdefault(name, []).append(slot)
            named.setdefault(spec.address, []).append(slot)
            named.setdefault(_host_of(spec.address), []).append(slot)
            for pool in spec.pools:
                pools.setdefault(pool, []).append(slot)
        self.models = list(models)
        self.serving = _arrays(serving)
        self.pools = _arrays(pools)
        self.weights = {name: name for name in adapted}
        self._aliases = aliases
        self._named = named
        by_slot = dict(specs)
        for alias, names in aliases.items():
            groups = {
                self.weights.get(self.sent(by_slot[slot], alias), "")
                for name in names
                for slot in serving.get(name, ())
            }
            if group := alias if len(groups) > 1 else "".join(groups):
                self.weights[alias] = group

    def sent(self, spec: EndpointSpec, name: str) -> str:
        """Return the model name to send to an endpoint for a client's request to `name`.

        This is `name` if the endpoint serves it, else the first of the alias's names that it
        serves, else the name of its model.
        """
        if name in spec.models:
            return name
        for model in self._aliases.get(name, ()):
            if model in spec.models:
                return model
        return spec.models[0]

    def named(self, item: str) -> list[int] | None:
        """Return the slots at ``ip:port``, or at every port of a bare IP, bracketed or not."""
        return self._named.get(item) or self._named.get(item.strip("[]"))


def _host_of(address: str) -> str:
    """Return the IP of ``ip:port``, without brackets."""
    return address.rpartition(":")[0].strip("[]")


def is_among(address: str, items: frozenset[str]) -> bool:
    """Return whether any of `items` names the address, as in `Names.named`."""
    host = _host_of(address)
    return not items.isdisjoint((address, host, f"[{host}]"))


def _arrays(slots: Mapping[str, list[int]]) -> dict[str, NDArray[np.intp]]:
    return {name: np.array(found, np.intp) for name, found in slots.items()}


def goes_by(name: str, known: Iterable[str]) -> bool:
    """Return whether an answer's model name is one of the known ones, or a variant of it.

    Engines may answer with the path the model was loaded from, or append a date or version.
    """
    own = _last_part(name)
    for other in map(_last_part, known):
        short, long = sorted((own, other), key=len)
        if long.startswith(short) and (short == long or long[len(short)] in _SEPARATORS):
            return bool(short)
    return False


def _last_part(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].casefold()
