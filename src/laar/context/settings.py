"""What a route may ask of the context hook.

The defaults are for documents of some kilobytes and chat prompts
of some tens; a route that cites documents by number keeps `relabel` off, and loses nothing but the
gain.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Le, Lt, MinLen

from laar.declaring import Applies, check
from laar.errors import SettingError

__all__ = ["ContextSettings", "Dedup", "Format", "Mode", "Reason", "Role"]

Mode = Literal["off", "observe", "on"]
Dedup = Literal["off", "exact"]
Format = Literal["xml", "json", "numbered"]
Role = Literal["user", "system", "tool"]


class Reason(StrEnum):
    """Why a body left the hook as it did; one counter each."""

    # The body was changed.
    REORDERED = "reordered"
    DEDUPLICATED = "deduplicated"  # text was taken out; documents may have been moved as well
    # Same bytes: nothing to do, or asked to do nothing.
    OFF = "off"
    NO_DOCUMENTS = "no_documents"
    UNCHANGED = "unchanged"
    OBSERVED = "observed"
    HOLDOUT = "holdout"
    AUTO_OFF = "auto_off"
    # Same bytes: refused.
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
    """Settings of one hook."""

    section: ClassVar = "context"
    applies: ClassVar = Applies.AT_ONCE

    formats: Annotated[tuple[Format, ...], MinLen(1)] = ("xml", "json", "numbered")
    """Explicit delimiters to look for; `numbered` also needs `relabel`."""
    roles: Annotated[tuple[Role, ...], MinLen(1)] = ("user", "system", "tool")
    """Whose messages may be changed; an assistant's never are."""
    min_docs: Annotated[int, Ge(2), Le(4096)] = 3
    """Documents below which a list is left alone: little to gain."""
    min_doc_bytes: Annotated[int, Ge(0), Le(1 << 20)] = 256
    """Mean length of documents below which a list is left alone: engines share whole blocks of 16
    to 64 tokens."""
    max_docs: Annotated[int, Ge(2), Le(4096)] = 256
    """Documents above which a list is left alone; bounds the search for an order."""
    annotate: bool = True
    """Name the received order after documents that were moved, for the model to weigh them by; 5 to
    6 tokens a document. Without it accuracy was measured lower."""
    relabel: bool = False
    """Numbered labels are never cited, so that text may move under fixed labels."""
    dedup: Dedup = "off"
    """`exact` replaces a document whose full text stands earlier in the same body with a note. Off:
    an author may want the repetition."""
    dedup_tool_lines: bool = False
    """Replace runs of lines of tool output that stand in earlier tool output. Off: it takes
    milliseconds for hundreds of kilobytes."""
    max_added_ms: Annotated[float, Gt(0), Le(1000)] = 1.0
    """Milliseconds after which the body is forwarded as it came; looked at between two steps. 1 is
    the 99th percentile for 15 documents of 4 KB."""
    max_body_bytes: Annotated[int, Ge(1024), Le(64 << 20)] = 2 << 20
    """Longest body that is looked at; 2 MiB are some 500,000 tokens."""
    capacity_docs: Annotated[int, Ge(1), Le(10_000_000)] = 30_000
    """Most documents whose order is remembered, about 0.1 KB each; where engines tell the size of
    their KV caches, as many as those hold together, if that is less."""
    ttl_s: Annotated[float, Gt(0), Le(86_400)] = 900.0
    """Seconds after which an order that was not sent again is forgotten."""
    half_life_s: Annotated[float, Gt(0), Le(86_400)] = 600.0
    """Seconds after which a document's popularity is half."""
    memo_entries: Annotated[int, Ge(1), Le(1_000_000)] = 20_000
    """Messages of running conversations whose order is remembered, so that later turns repeat it;
    some 0.3 KB each."""
    memo_ttl_s: Annotated[float, Gt(0), Le(86_400)] = 3600.0
    """Seconds of silence after which a conversation's messages may be ordered anew."""
    max_scopes: Annotated[int, Ge(1), Le(1024)] = 32
    """Tenants times models whose popularity is counted, 0.8 MB each; the least recently used
    goes."""
    holdout_share: Annotated[float, Ge(0), Lt(1)] = 0.05
    """Share of requests left as received, to compare with. 0 switches the guard off as well."""
    min_gain: Annotated[float, Ge(0), Le(1)] = 0.01
    """Share of prompt tokens found cached that reordering must add, else the route switches itself
    off ..."""
    guard_requests: Annotated[int, Ge(2), Le(10_000_000)] = 200
    """... once so many requests of either group had their usage read."""

    def __post_init__(self) -> None:
        """Raises SettingError for a value that cannot work."""
        check(self)
        if self.max_docs < self.min_docs:
            raise SettingError("context: `max_docs` must not be below `min_docs`")
