"""Settings for the context hook of a route.

The defaults suit documents of a few kilobytes and chat prompts of tens of kilobytes. Keep `relabel`
off for a route that cites documents by number: ids replace the numbers where possible.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar, Literal, get_args

from annotated_types import Ge, Le, Lt, MinLen

from laar.declaring import FIXED, Applies

Mode = Literal["off", "observe", "on"]
Dedup = Literal["off", "auto", "exact"]
Format = Literal["xml", "json", "recurring"]
Role = Literal["user", "system", "tool"]


class Reason(StrEnum):
    """What the hook did with a body, or why it did nothing; each reason has a counter."""

    # The body was changed.
    REORDERED = "reordered"
    DEDUPLICATED = "deduplicated"  # text was removed; documents may have moved too
    # Unchanged: nothing to do, or switched off.
    OFF = "off"
    NO_DOCUMENTS = "no_documents"
    UNCHANGED = "unchanged"
    SAME_ORDER = "same_order"  # no two documents were seen in a different order
    NOTHING_SHARED = "nothing_shared"  # prompts like this one begin differently each time
    OBSERVED = "observed"
    HOLDOUT = "holdout"
    AUTO_OFF = "auto_off"
    # Unchanged: refused.
    TOO_LARGE = "too_large"
    TOO_COMPLEX = "too_complex"
    INVALID_JSON = "invalid_json"
    DUPLICATE_KEYS = "duplicate_keys"
    UNSUPPORTED_API = "unsupported_api"
    UNBALANCED = "unbalanced"
    NESTED = "nested"
    MALFORMED_TAG = "malformed_tag"
    DUPLICATE_ATTRIBUTE = "duplicate_attribute"
    GAPS_DIFFER = "gaps_differ"
    REPEATED = "repeated_documents"
    POSITIONAL_LABELS = "positional_labels"
    TOO_MANY = "too_many_documents"
    TOO_SMALL = "too_small"
    OVER_BUDGET = "over_budget"
    CHECK_FAILED = "check_failed"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSettings:
    """Settings for one hook."""

    applies: ClassVar = Applies.AT_ONCE

    formats: Annotated[tuple[Format, ...], MinLen(1)] = get_args(Format)
    """Where to look for documents: tags named for documents, JSON lists, and texts that recur with
    different neighbors (`recurring`). All by default."""
    roles: Annotated[tuple[Role, ...], MinLen(1)] = ("user", "system", "tool")
    """Roles whose messages may be changed; assistant messages never are."""
    min_docs: Annotated[int, FIXED, Ge(2)] = 3
    """Minimum number of documents in a list that is changed; shorter lists gain little."""
    annotate: Annotated[bool, FIXED] = True
    """Whether a note after reordered documents tells the model their original order; 5 to 6 tokens
    per document. Without it, the paper measured a lower accuracy."""
    relabel: bool = False
    """Whether documents may move while their ascending labels stay in place. Only for routes where
    nobody uses the numbers."""
    dedup: Dedup = "auto"
    """`auto` replaces a document whose full text occurs earlier in the same body with a reference
    to it, except in `holdout_share` of the conversations, until reported outcomes of a model are
    worse with it. `exact` does so in all conversations, whatever is reported. `off` never does."""
    max_body_bytes: Annotated[int, FIXED, Ge(1024), Le(64 << 20)] = 2 << 20
    """Longest body examined; 2 MiB is about 500,000 tokens."""
    capacity_docs: Annotated[int, Ge(1), Le(10_000_000)] = 30_000
    """Maximum number of documents whose order is remembered: 0.1 KB each, up to 0.9 KB if many
    orders differ only in their last document."""
    holdout_share: Annotated[float, Ge(0), Lt(1)] = 0.05
    """Share of conversations left in their order for comparison, in windows, and share of those
    whose repeated documents stay. 0 also switches the guard off."""
