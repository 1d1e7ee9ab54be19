"""The models that the fleet serves, as OpenAI's ``GET /v1/models`` lists them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from laar.core.endpoints import EndpointTable
from laar.errors import RequestError


def catalog(table: EndpointTable, aliases: Iterable[str], pool: str = "") -> dict[str, Any]:
    """Return every model name that a request may use, in an order independent of the endpoints.

    Args:
        table: the endpoints.
        aliases: virtual names, which are listed last.
        pool: the pool whose endpoints are listed; empty means all.

    Returns:
        OpenAI's list object. Adapters have a ``parent``; ``max_model_len`` is the longest of any
        endpoint, omitted if unknown.
    """
    slots = table.in_pool(pool) if pool else table.active
    found: dict[str, dict[str, Any]] = {}
    for slot in slots.tolist():
        spec = table.spec(slot)
        for name in spec.models:
            entry = found.setdefault(name, _entry(name))
            if name in spec.adapters:
                entry["parent"] = spec.models[0]
            if spec.max_model_len:
                entry["max_model_len"] = max(entry.get("max_model_len", 0), spec.max_model_len)
    virtual = set(aliases) if found else set()
    names = sorted(found.keys() - virtual) + sorted(virtual)
    return {"object": "list", "data": [found.get(name) or _entry(name) for name in names]}


def _entry(name: str) -> dict[str, Any]:
    """Return a model object; `created` is 0 so that all pickers give the same answer."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "laar"}


def no_such_model(name: str) -> RequestError:
    """Return the error for a name that no endpoint serves."""
    return RequestError(404, "unknown-model", f"the model `{name[:200]}` does not exist")
