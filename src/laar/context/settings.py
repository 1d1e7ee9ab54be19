"""Settings for the context hook of a route.

The defaults suit documents of a few kilobytes and chat prompts of tens of kilobytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Lt

from laar.declaring import Applies

Mode = Literal["off", "observe", "on"]
Dedup = Literal["off", "auto", "exact"]


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

    dedup: Dedup = "auto"
    """`auto`, or `exact`, replaces a document whose full text occurs earlier in the same body with
    a reference to it."""
    holdout_share: Annotated[float, Ge(0), Lt(1)] = 0.05
    """Share of conversations left in their order for comparison, in windows. 0 also switches the
    guard off."""
