"""Diagnose a body: which documents the hook finds and, if it moves none, why not.

As in the hook, documents are learned from earlier bodies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

import orjson

from laar.context.blocks import MAX_DOCS
from laar.context.bodies import api_of
from laar.context.hook import ContextHook
from laar.context.settings import ContextSettings, Reason
from laar.context.turn import TurnPlan

_MOVABLE = (Reason.UNCHANGED, Reason.OBSERVED)

WHY = {
    "no_documents": "No text of the last turn, in a role that may be changed, contains three or "
    "more documents in tags, in JSON or recurring. Give several bodies of the route, one per line, "
    "so that recurring documents can be learned.",
    "same_order": "No two of them were seen in another order, so their order may have a meaning.",
    "positional_labels": "The labels number the documents, and an answer may cite them. Ids "
    "replace the numbers if they are recognized and the answer is plain text (chat or completions, "
    "without tools or a grammar). Set `relabel: true` if nobody uses the numbers.",
    "too_small": "The text is too short to save anything.",
    "repeated_documents": "Two documents are equal.",
    "invalid_json": "The body is not JSON in UTF-8.",
    "unsupported_api": "The body has neither `messages`, `prompt` nor `input`.",
    "unbalanced": "A document's tag is not closed, or closed twice.",
    "nested": "A document is inside another.",
    "malformed_tag": "A document's tag can't be read.",
    "duplicate_attribute": "A tag has a duplicate attribute.",
    "gaps_differ": "There is other text between two documents.",
    "too_many_documents": f"There are more than {MAX_DOCS}.",
    "too_complex": "The text is too long or too deeply nested to be read in time.",
    "duplicate_keys": "A JSON key occurs twice.",
}
"""Explanations, by reason."""


def diagnose(
    body: bytes,
    settings: ContextSettings | None = None,
    *,
    earlier: Sequence[bytes] = (),
) -> dict[str, Any]:
    """Return the hook's view of a body; never raise.

    Args:
        body: JSON of a body, or a line of a batch file with a ``body``.
        settings: settings of the route; None means the defaults.
        earlier: previous bodies, to learn documents from.

    Returns:
        `documents`, their number in all lists; `bytes`, the total length of the movable documents;
        `shape`, the format of the longest list, if any; `movable`, how many the hook may move,
        perhaps only within a part of the list; `reason`, why it moves none, if so, and `why` as a
        sentence; `api`, the API used to read the body.
    """
    hook = ContextHook(replace(settings or ContextSettings(), holdout_share=0.0))
    for earlier_body in earlier:
        hook.commit(_observed(hook, earlier_body)[0], 0.0)
    plan, api = _observed(hook, body)
    shape = max(plan.shapes, key=itemgetter(1))[0] if plan.shapes else None
    reason = None if plan.reason in _MOVABLE else plan.reason.value
    return {
        "documents": plan.documents,
        "bytes": plan.document_bytes,
        "shape": shape,
        "movable": 0 if reason else plan.documents,
        "reason": reason,
        "why": WHY.get(reason) if reason else None,
        "api": api,
    }


def _observed(hook: ContextHook, body: bytes) -> tuple[TurnPlan, str | None]:
    """Return the hook's result for a body, and the API used to read it."""
    try:
        value = orjson.loads(body)
        if isinstance(value, dict) and isinstance(value.get("body"), dict):
            value = value["body"]
            body = orjson.dumps(value)
    except orjson.JSONDecodeError:
        value = None
    except orjson.JSONEncodeError:  # nested deeper than orjson can write
        return TurnPlan(body=body, reason=Reason.TOO_COMPLEX), None
    api = api_of(value) if isinstance(value, dict) else None
    made = hook.apply(body, api=api or "", tenant="", now=0.0, mode="observe", restores=True)
    return made, api
