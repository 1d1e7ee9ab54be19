"""The context hooks over HTTP.

    GET /context    by route: the expected share of cached documents and the guard's verdict

The hooks are in `laar.server.context_hooks`.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from laar.server.admin.answers import as_json
from laar.server.context_hooks import ContextHooks, Ordering


def context_routes(hooks: ContextHooks) -> list[Route]:
    """Return the routes for the admin port."""

    async def show(_request: Request) -> Response:
        return as_json({"routes": [_shown(ordering) for ordering in hooks.orderings]})

    return [Route("/context", show)]


def _shown(ordering: Ordering) -> dict[str, object]:
    """Return a route's rule, its guard's measurements, and its hook's counts."""
    from laar.context.guard import MIN_GAIN, MIN_REQUESTS

    rule, guard = ordering.rule, ordering.hook.guard
    watches = "watching" if rule.hook.holdout_share else "disabled"
    gain, error = guard.gain()
    documents = ordering.document_bytes
    return {
        "name": rule.name,
        "path": rule.path,
        "models": rule.models,
        "mode": rule.mode,
        "guard": {
            "state": "off" if ordering.is_off else watches,
            "holdout_share": rule.hook.holdout_share,
            "min_gain": MIN_GAIN,
            "requests_needed": MIN_REQUESTS,
            "requests_seen": guard.ahead.n,
            "gain": {
                "cached_share": gain if guard.ahead.n else None,
                "two_errors": 2 * error if guard.ahead.n else None,
            },
            "dedup": rule.hook.dedup,
        },
        "requests": ordering.reasons,
        "shapes": ordering.shapes,
        "expected": {
            "eligible": ordering.eligible,
            "document_bytes": documents,
            "hit_share": ordering.expected_bytes / documents if documents else None,
            "hit_share_as_received": ordering.received_bytes / documents if documents else None,
        },
        "memory": ordering.hook.stats(),
    }
