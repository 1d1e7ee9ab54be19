"""The options of the context hook for a route.

The defaults suit documents of some kilobytes and chat prompts of some tens of kilobytes. A route
that cites documents by number keeps `relabel` off: ids take the numbers' place where they can.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar, Literal, get_args

from annotated_types import Ge, Le, Lt, MaxLen, MinLen

from laar.declaring import FIXED, Applies, check
from laar.errors import SettingError

Mode = Literal["off", "observe", "on"]
Dedup = Literal["off", "auto", "exact"]
Format = Literal["xml", "json", "recurring"]
Role = Literal["user", "system", "tool"]


class Reason(StrEnum):
    """Why a body left the hook as it did; one counter each."""

    # The body was changed.
    REORDERED = "reordered"
    DEDUPLICATED = "deduplicated"  # text was taken out; documents may have been moved as well
    STEADIED = "steadied"  # tools sorted, or lines put last; no document was moved
    # Same bytes: nothing to do, or asked to do nothing.
    OFF = "off"
    NO_DOCUMENTS = "no_documents"
    UNCHANGED = "unchanged"
    SAME_ORDER = "same_order"  # no two of them were seen in another order
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
    """Marks of documents in the prompts of a route, where no known shape fits."""

    section: ClassVar = "context.delimiters"
    applies: ClassVar = Applies.AT_ONCE

    before: Annotated[str, MaxLen(1024)] = ""
    """Literal text that ends where the first document begins. Empty: the message's beginning."""
    item: Annotated[str, MaxLen(256)] = ""
    """Literal text that each document begins with; `{n}` in it stands for a number, which stays in
    its place."""
    between: Annotated[str, MaxLen(256)] = ""
    """Literal text between two documents, if no `item` begins them."""
    after: Annotated[str, MaxLen(1024)] = ""
    """Literal text after the last document. Empty: the message's end."""

    def __post_init__(self) -> None:
        """Raise SettingError where documents could not be separated."""
        if bool(self.item.replace("{n}", "").strip()) == bool(self.between):
            raise SettingError("context.delimiters: give either `item` or `between`")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSettings:
    """Settings of one hook."""

    section: ClassVar = "context"
    applies: ClassVar = Applies.AT_ONCE

    formats: Annotated[tuple[Format, ...], MinLen(1)] = get_args(Format)
    """Where documents are looked for: tags with names for documents, lists in JSON, and texts that
    came before between others (`recurring`). All by default."""
    delimiters: Annotated[tuple[Delimiters, ...], MaxLen(8)] = ()
    """Further shapes in the prompts of this route. They are tried first."""
    roles: Annotated[tuple[Role, ...], MinLen(1)] = ("user", "system", "tool")
    """Roles whose messages may be changed; an assistant's never are."""
    min_docs: Annotated[int, FIXED, Ge(2)] = 3
    """Number of documents below which a list stays unchanged, since the gain is small."""
    min_saving_bytes: Annotated[int, FIXED, Ge(0)] = 256
    """Largest possible saving of a list (its text less the note about its order), in bytes, below
    which it stays unchanged. 256 bytes are some 64 tokens, one to four of the blocks that engines
    share."""
    annotate: Annotated[bool, FIXED] = True
    """Whether a note after moved documents gives their received order, for the model to weigh them
    by; 5 to 6 tokens a document. Without it, accuracy was measured lower."""
    relabel: bool = False
    """Whether text may move below labels that count up, which keep their places: only for routes
    where nobody uses the numbers."""
    dedup: Dedup = "auto"
    """`exact` replaces a document whose full text occurs earlier in the same body with a note that
    points there. `auto` tries that in `holdout_share` of the conversations, and extends it to all
    but that share once reported outcomes show no harm.
    `off` never does."""
    sort_tools: bool = False
    """Whether tools are sent sorted by name, so that clients whose tools come in many orders share
    their prefix (`laar context advise` names them). A tool with `cache_control` keeps its place."""
    last_lines: Annotated[tuple[Annotated[str, MinLen(4), MaxLen(256)], ...], MaxLen(16)] = ()
    """Beginnings of lines of the system prompt that go behind the last text of the user: a date, a
    path, an id, which differ by prompt and break the prefix where they stand
    (`laar context advise` names them)."""
    max_body_bytes: Annotated[int, FIXED, Ge(1024), Le(64 << 20)] = 2 << 20
    """Longest body that is examined; 2 MiB are some 500,000 tokens."""
    capacity_docs: Annotated[int, Ge(1), Le(10_000_000)] = 30_000
    """Documents whose order is remembered at most: 0.1 KB each, up to 0.9 KB
    where many orders differ in their last document only. If engines report the sizes
    of their KV caches, the limit is what those hold together, if less."""
    holdout_share: Annotated[float, Ge(0), Lt(1)] = 0.05
    """Share of conversations that stay as received, in windows, for comparison. 0 also switches
    the guard off."""

    def __post_init__(self) -> None:
        """Raise SettingError for a value that cannot work."""
        check(self)
