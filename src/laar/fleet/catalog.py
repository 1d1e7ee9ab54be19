"""The models that the fleet serves, as ``GET /v1/models`` lists them.

The list is valid for OpenAI's and for Anthropic's clients.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from laar.errors import RequestError
from laar.fleet.endpoints import EndpointTable


def catalog(table: EndpointTable, pool: str = "") -> dict[str, Any]:
    """Return every model name that a request may use, in an order independent of the endpoints.

    Aliases are listed last.

    Args:
        table: the endpoints.
        pool: the pool whose endpoints are listed; empty means all.

    Returns:
        The list object. Adapters have a ``parent``; ``max_model_len`` is the longest request
        that any endpoint of the name takes, omitted if unknown. The names of a model that has no
        endpoint at the moment have ``"available": false``.
    """
    slots = table.in_pool(pool) if pool else table.active
    found: dict[str, dict[str, Any]] = {}
    for slot in slots.tolist():
        spec = table.spec(slot)
        for name in spec.models:
            entry = found.setdefault(name, _entry(name))
            if name in spec.adapters:
                entry["parent"] = spec.models[0]
            window = spec.windows.get(name, spec.max_model_len)
            if window and spec.takes_requests:
                entry["max_model_len"] = max(entry.get("max_model_len", 0), window)
    for away in table.away:
        if table.serving(away.model) is None and (not pool or pool in away.pools):
            found[away.name] = _entry(away.name) | {"available": False}
    for name in table.aliases if found else ():
        able = np.intersect1d(table.reach(name), slots)
        texts = able[table.generates[able]]  # clients size chats by the window
        able = texts if len(texts) else able
        windows = table.windows(able, name)[table.takes[able]]
        window = int(windows.max(initial=0.0, where=np.isfinite(windows)))
        found[name] = _entry(name) | ({"max_model_len": window} if window else {})
    names = sorted(found, key=lambda name: (name in table.aliases, name))
    first, last = (names[0], names[-1]) if names else (None, None)
    page = {"has_more": False, "first_id": first, "last_id": last}
    return {"object": "list", "data": [found[name] for name in names], **page}


def _entry(name: str) -> dict[str, Any]:
    """Return a model object; it was created at 0 so that all pickers give the same answer."""
    openai = {"id": name, "object": "model", "created": 0, "owned_by": "laar"}
    return openai | {
        "type": "model",
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",
        "lifecycle": "active",
    }


def no_such_model(name: str) -> RequestError:
    """Return the error for a name that no endpoint serves, or ever did."""
    return RequestError(404, "unknown-model", f"the model `{name[:200]}` does not exist")
