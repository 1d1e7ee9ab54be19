"""Find endpoints by the name of a model or pool, by address, or by IP."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from laar.fleet.membership import EndpointSpec

_NO_SLOTS = np.empty(0, np.intp)


class Names:
    """Endpoints by the name of a model or pool, by address, or by IP.

    Attributes:
        models: the distinct first entries of `EndpointSpec.models`, in the order of the slots.
        judged: the models, and then their variants, each of which has its own accuracy.
        model_of: the model of each variant, by its name.
        active: the slots of all endpoints, ascending.
        aliases: the virtual names, with the models of each; none means all.
    """

    models: list[str]
    judged: list[str]
    model_of: Mapping[str, str]
    active: NDArray[np.intp]
    aliases: Mapping[str, Sequence[str]]

    def index(
        self,
        specs: Mapping[int, EndpointSpec],
        aliases: Mapping[str, Sequence[str]],
        variants: Mapping[str, Sequence[str]],
    ) -> None:
        """Index the endpoints, in ascending slot order; an alias's empty list means all models.

        A variant of a model is another way to ask it. Names that serve something else are none.
        """
        models: dict[str, None] = {}
        serving: dict[str, list[int]] = {}
        pools: dict[str, list[int]] = {}
        named: dict[str, list[int]] = {}
        adapted: set[str] = set()
        # An endpoint that has not reported yet is assumed to be like the others of its model.
        same = {(spec.models[0], name) for spec in specs.values() for name in spec.same_weights}
        for slot, spec in specs.items():
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
        self._on_demand = {slot: spec.on_demand for slot, spec in specs.items() if spec.on_demand}
        self.model_of = {
            name: model
            for model in models
            for name in variants.get(model, ())
            if name not in serving and name not in aliases
        }
        self.models, self.judged = list(models), [*models, *self.model_of]
        self._serving, self._pools = _arrays(serving), _arrays(pools)
        self._weights = {name: name for name in adapted}
        self.aliases, self._named = aliases, named
        for alias, names in aliases.items():
            groups = {
                self._weights.get(self.sent_name(specs[slot], alias), "")
                for name in names
                for slot in serving.get(name, ())
            }
            if group := alias if len(groups) > 1 else "".join(groups):
                self._weights[alias] = group

    def named(self, item: str) -> Sequence[int]:
        """Return the slots at ``ip:port``, or at every port of a bare IP, bracketed or not."""
        return self._named.get(item) or self._named.get(item.strip("[]")) or ()

    def serving(self, name: str) -> NDArray[np.intp] | None:
        """Return the endpoints that serve a model name, ascending; None when none does.

        What none has loaded is served by those that load it when asked.
        """
        found = self._serving.get(name)
        if found is None and name and self._on_demand and name not in self.aliases:
            slots = [slot for slot, of in self._on_demand.items() if _is_named(name, of)]
            return np.array(slots, np.intp) if slots else None
        return found

    def reach(self, name: str) -> NDArray[np.intp]:
        """Return the endpoints of a name or an alias; all for none, and an alias of no models."""
        models = self.aliases.get(name, (name,))
        if not (name and models):
            return self.active
        found = [slots for n in {*models, name} if (slots := self.serving(n)) is not None]
        return found[0] if len(found) == 1 else np.unique(np.concatenate([_NO_SLOTS, *found]))

    def weights(self, name: str) -> str:
        """Return a key for the cached prefixes of a model name: names with equal keys share them.

        The key is empty for the endpoints' own models under any name; otherwise it is the name of
        the adapter, or of an alias for several adapters.
        """
        loaded = name in self._serving or name in self.aliases or not self._on_demand
        return self._weights.get(name, "" if loaded else name)

    def sent_name(self, spec: EndpointSpec, name: str) -> str:
        """Return the model name to send to an endpoint for a client's request to `name`.

        This is `name` if the endpoint serves it, else the first of the alias's names that it
        serves, else the name of its model.
        """
        if name in spec.models or (spec.on_demand and _is_named(name, spec.on_demand)):
            return name
        for model in self.aliases.get(name, ()):
            if model in spec.models:
                return model
        return spec.models[0]

    def adapter(self, spec: EndpointSpec, name: str) -> str:
        """Return the adapter that serves a model name at an endpoint; empty if none does."""
        name = self.sent_name(spec, name)
        return name if name in spec.adapters else ""

    def in_pool(self, name: str) -> NDArray[np.intp]:
        """Return the endpoints labeled with a pool."""
        return self._pools.get(name, _NO_SLOTS)


def _host_of(address: str) -> str:
    """Return the IP of ``ip:port``, without brackets."""
    return address.rpartition(":")[0].strip("[]")


def _is_named(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a name is among some, or begins as one that ends with a ``*``."""
    return any(name == p or (p[-1] == "*" and name.startswith(p[:-1])) for p in patterns)


def is_among(address: str, items: frozenset[str]) -> bool:
    """Return whether any of `items` matches the address, as in `Names.named`."""
    host = _host_of(address)
    return not items.isdisjoint((address, host, f"[{host}]"))


def _arrays(slots: Mapping[str, list[int]]) -> dict[str, NDArray[np.intp]]:
    return {name: np.array(found, np.intp) for name, found in slots.items()}
