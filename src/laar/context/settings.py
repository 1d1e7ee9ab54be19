"""What a route may ask of the context hook.

The defaults are for documents of some kilobytes and chat prompts
of some tens; a route that cites documents by number keeps `relabel` off, and loses nothing but the
gain.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar, Literal, get_args

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen

from laar.declaring import Applies, check
from laar.errors import SettingError

__all__ = ["ContextSettings", "Dedup", "Delimiters", "Format", "Mode", "Reason", "Relabel", "Role"]

Mode = Literal["off", "observe", "on"]
Dedup = Literal["off", "auto", "exact"]
Relabel = Literal["auto"] | bool
Format = Literal[
    "xml",
    "json",
    "numbered",
    "labels",
    "brackets",
    "points",
    "records",
    "headings",
    "separators",
    "bullets",
    "paragraphs",
]
Role = Literal["user", "system", "tool"]


class Reason(StrEnum):
    """Why a body left the hook as it did; one counter each."""

    # The body was changed.
    REORDERED = "reordered"
    DEDUPLICATED = "deduplicated"  # text was taken out; documents may have been moved as well
    # Same bytes: nothing to do, or asked to do nothing.
    OFF = "off"
    NO_DOCUMENTS = "no_documents"
    UNKNOWN_SHAPE = "unknown_shape"  # documents were announced, but no shape fits
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
class Delimiters:
    """How the prompts of a route mark documents, where no known shape fits."""

    section: ClassVar = "context.delimiters"
    applies: ClassVar = Applies.AT_ONCE

    before: Annotated[str, MaxLen(1024)] = ""
    """Literal text that ends where the first document begins; empty: the beginning."""
    item: Annotated[str, MaxLen(256)] = ""
    """Literal text that each document begins with; `{n}` in it stands for a number, which stays in
    its place."""
    between: Annotated[str, MaxLen(256)] = ""
    """Literal text between two documents, where they begin with none."""
    after: Annotated[str, MaxLen(1024)] = ""
    """Literal text behind the last one; empty: the end."""

    def __post_init__(self) -> None:
        """Raises SettingError where documents could not be told apart."""
        if bool(self.item.replace("{n}", "").strip()) == bool(self.between):
            raise SettingError("context.delimiters: give either `item` or `between`")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSettings:
    """Settings of one hook."""

    section: ClassVar = "context"
    applies: ClassVar = Applies.AT_ONCE

    formats: Annotated[tuple[Format, ...], MinLen(1)] = get_args(Format)
    """Shapes of documents to look for; all that are known by default."""
    delimiters: Annotated[tuple[Delimiters, ...], MaxLen(8)] = ()
    """More of them, as the prompts of this route have them; looked for first."""
    roles: Annotated[tuple[Role, ...], MinLen(1)] = ("user", "system", "tool")
    """Whose messages may be changed; an assistant's never are."""
    min_docs: Annotated[int, Ge(2), Le(4096)] = 3
    """Documents below which a list is left alone: little to gain."""
    min_saving_bytes: Annotated[int, Ge(0), Le(1 << 20)] = 256
    """What a list could save at most, its text less the note about its order, below which it is
    left alone: 256 are some 64 tokens, one to four of the blocks that engines share."""
    max_docs: Annotated[int, Ge(2), Le(4096)] = 256
    """Documents above which a list is left alone; bounds the search for an order."""
    annotate: bool = True
    """Name the received order after documents that were moved, for the model to weigh them by; 5 to
    6 tokens a document. Without it accuracy was measured lower."""
    relabel: Relabel = "auto"
    """Whether text may move under labels that count up, which stay: `auto` where nothing in the
    prompt makes use of the numbers (citations, ranks, `document 2`); `true` where no prompt ever
    does; `false` never."""
    dedup: Dedup = "auto"
    """`exact` replaces a document whose full text stands earlier in the same body with a note that
    points there. `auto` tries that in `holdout_share` of the conversations, and does so in all but
    that share once the guard saw fewer tokens to prefill and, of reported outcomes, no harm. `off`
    never does."""
    dedup_tool_lines: bool = False
    """Replace runs of lines of tool output that stand in earlier tool output. Off: it takes
    milliseconds for hundreds of kilobytes."""
    max_added_ms: Annotated[float, Gt(0), Le(1000)] = 4.0
    """Milliseconds after which the body is forwarded as it came; looked at between two steps. 2 is
    the 99th percentile for 95 documents of 4 KB."""
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
    """Seconds of silence after which a conversation's messages may be ordered again."""
    max_scopes: Annotated[int, Ge(1), Le(1024)] = 32
    """Tenants times models whose popularity is counted, 0.8 MB each; the least recently used
    goes."""
    holdout_share: Annotated[float, Ge(0), Lt(1)] = 0.05
    """Share of requests left as received, to compare with. 0 switches the guard off as well."""
    min_gain: Annotated[float, Ge(0), Le(1)] = 0.01
    """Share of prompt tokens found cached that reordering must add, else the route switches itself
    off ..."""
    guard_requests: Annotated[int, Ge(2), Le(10_000_000)] = 200
    """... once this many requests of either group had their usage read."""
    guard_outcomes: Annotated[int, Ge(2), Le(10_000_000)] = 50
    """Reported outcomes of either group before their correctness is compared: what makes answers
    worse, by three standard errors, is switched off."""

    def __post_init__(self) -> None:
        """Raises SettingError for a value that cannot work."""
        check(self)
        if self.max_docs < self.min_docs:
            raise SettingError("context: `max_docs` must not be below `min_docs`")
