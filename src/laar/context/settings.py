"""What a route may ask of the context hook.

Every number carries its reason. The defaults are for documents of some kilobytes and chat prompts
of some tens; a route that cites documents by number keeps `relabel` off, and loses nothing but the
gain.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, get_args

from laar.errors import SettingError

__all__ = ["ContextSettings", "Dedup", "Delimiters", "Format", "Mode", "Reason", "Relabel", "Role"]

Mode = Literal["off", "observe", "on"]
Dedup = Literal["off", "exact"]
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
    """How the prompts of a route mark documents, where no known shape fits.

    Args:
        before: literal text that ends where the first document begins; empty: the text's start.
        item: literal text that begins each document, with ``{n}`` for a number that stays in place.
        between: literal text between two documents; needed where `item` is empty.
        after: literal text behind the last document; empty: the text's end.
    """

    before: str = ""
    item: str = ""
    between: str = ""
    after: str = ""

    def __post_init__(self) -> None:
        """Raises SettingError where documents could not be told apart."""
        if bool(self.item.replace("{n}", "").strip()) == bool(self.between):
            raise SettingError("context.delimiters: give either `item` or `between`")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSettings:
    """Settings of one hook.

    Args:
        formats: families of shapes to look for; see `laar.context.formats.SHAPES`.
        delimiters: more of them, as this route's prompts have them.
        roles: whose messages may be changed; the assistant's never are.
        min_docs: fewer documents than this in a block are left alone; 2 have little to gain.
        min_saving_bytes: what a block could save at most, below which it is left alone: its text
            less the note about its order. 256 bytes are some 64 tokens, one to four of the whole KV
            blocks that engines share.
        max_docs: more than this in a block are left alone; bounds the search for an order.
        annotate: name the received order after documents that were moved.
        dedup: ``exact`` replaces a document whose full text stands earlier in the same body.
        dedup_tool_lines: replace runs of lines of tool output seen in earlier tool output. Off:
            it takes milliseconds for hundreds of kilobytes, against a budget of one.
        relabel: whether text may move under labels that count up. ``auto``: where nothing in the
            prompt makes use of the numbers; True: numbers are never cited; False: never.
        max_added_ms: past this between two steps, the body is forwarded as it came. None: no limit.
        max_body_bytes: larger bodies are forwarded as they came.
        capacity_docs: most documents that the order index holds; no more than the endpoints' KV
            caches do, as far as these tell, so that it does not align to what was evicted long ago.
        ttl_s: an order not sent again for this long is forgotten. half_life_s: of the popularity
        counts. memo_entries: blocks of running conversations whose order is remembered; about 300
        bytes each. memo_ttl_s: a conversation silent for this long may be ordered anew. max_scopes:
        (tenant, route, model) triples with popularity counts, about 0.8 MB each; the
            least recently used one is dropped.
        holdout_share: part of the eligible requests that is left as received, to measure the gain
            by; 0 switches the guard off as well.
        min_gain: share of prompt tokens cached that reordering must add, else it goes off.
        guard_requests: left-alone requests with usage to see before the guard may judge.
    """

    formats: tuple[Format, ...] = get_args(Format)
    delimiters: tuple[Delimiters, ...] = ()
    roles: tuple[Role, ...] = ("user", "system", "tool")
    min_docs: int = 3
    min_saving_bytes: int = 256
    max_docs: int = 256
    annotate: bool = True
    dedup: Dedup = "off"
    dedup_tool_lines: bool = False
    relabel: Relabel = "auto"
    max_added_ms: float | None = 1.0
    max_body_bytes: int = 2 << 20
    capacity_docs: int = 30_000
    ttl_s: float = 900.0
    half_life_s: float = 600.0
    memo_entries: int = 20_000
    memo_ttl_s: float = 3600.0
    max_scopes: int = 32
    holdout_share: float = 0.05
    min_gain: float = 0.01
    guard_requests: int = 200

    def __post_init__(self) -> None:
        """Raises SettingError for a value that cannot work."""
        for name, values, known in (
            ("formats", self.formats, get_args(Format)),
            ("roles", self.roles, get_args(Role)),
            ("dedup", (self.dedup,), get_args(Dedup)),
        ):
            for value in values:
                if value not in known:
                    text = f"context.{name}: {value!r} is not one of {', '.join(known)}"
                    raise SettingError(text)
        for name, least in (
            ("min_docs", 2),
            ("min_saving_bytes", 0),
            ("max_docs", self.min_docs),
            ("max_body_bytes", 1),
            ("capacity_docs", 1),
            ("ttl_s", 0.001),
            ("half_life_s", 0.001),
            ("memo_entries", 1),
            ("memo_ttl_s", 0.001),
            ("max_scopes", 1),
            ("guard_requests", 2),
        ):
            if getattr(self, name) < least:
                text = f"context.{name}: {getattr(self, name)} is too small; use {least} or more"
                raise SettingError(text)
        if not 0.0 <= self.holdout_share < 1.0:
            text = f"context.holdout_share: {self.holdout_share} is not in [0, 1)"
            raise SettingError(text)
