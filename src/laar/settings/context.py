"""Whose documents may be reordered (ContextPilot at the picker)."""

from __future__ import annotations

from dataclasses import fields
from typing import ClassVar, get_args

from pydantic import Field, model_validator

from laar.context import ContextSettings, Dedup, Delimiters, Format, Mode, Relabel, Role
from laar.settings.section import Applies, Section

__all__ = ["Context", "ContextDelimiters", "ContextRoute"]


class ContextDelimiters(Section):
    """How the prompts of a route mark documents, where no known shape fits."""

    before: str = Field(
        "",
        max_length=1024,
        description="Literal text that ends where the first document begins; empty: the beginning.",
    )
    item: str = Field(
        "",
        max_length=256,
        description="Literal text that each document begins with; `{n}` in it stands for a number, "
        "which stays in its place.",
    )
    between: str = Field(
        "",
        max_length=256,
        description="Literal text between two documents, where they begin with none.",
    )
    after: str = Field(
        "", max_length=1024, description="Literal text behind the last one; empty: the end."
    )

    @model_validator(mode="after")
    def _tells_documents_apart(self) -> ContextDelimiters:
        if bool(self.item.replace("{n}", "").strip()) == bool(self.between):
            raise ValueError("give either `item` or `between`")
        return self


class ContextRoute(Section):
    """Requests whose documents the context hook may order, and how."""

    name: str = Field(
        min_length=1,
        max_length=64,
        pattern=r"^[A-Za-z0-9_.-]+$",
        description="What metrics and /context call it.",
    )
    path: str = Field(
        "/",
        pattern="^/",
        max_length=1024,
        description="Prefix of the request paths it is about; all of them by default.",
    )
    models: tuple[str, ...] = Field(
        (), max_length=64, description="Names that clients ask for; any by default."
    )
    mode: Mode = Field(
        "off",
        description="`observe` works out what would be gained and forwards the same bytes; `on` "
        "reorders. Off by default: order can carry meaning, so look first.",
    )
    opt_in: bool = Field(
        False,
        description="Whether `x-laar-context: on` turns it on for a request where the mode is "
        "`off` or `observe`. `x-laar-context: off` turns it off in any mode.",
    )
    formats: tuple[Format, ...] = Field(
        get_args(Format),
        min_length=1,
        description="Shapes of documents to look for; all that are known by default.",
    )
    delimiters: tuple[ContextDelimiters, ...] = Field(
        (),
        max_length=8,
        description="More of them, as the prompts of this route have them; looked for first.",
    )
    roles: tuple[Role, ...] = Field(
        ("user", "system", "tool"),
        min_length=1,
        description="Whose messages may be changed; an assistant's never are.",
    )
    min_docs: int = Field(
        3, ge=2, le=4096, description="Documents below which a list is left alone: little to gain."
    )
    min_saving_bytes: int = Field(
        256,
        ge=0,
        le=1 << 20,
        description="What a list could save at most, its text less the note about its order, below "
        "which it is left alone: 256 are some 64 tokens, one to four of the blocks that engines "
        "share.",
    )
    max_docs: int = Field(
        256,
        ge=2,
        le=4096,
        description="Documents above which a list is left alone; bounds the search for an order.",
    )
    annotate: bool = Field(
        True,
        description="Name the received order after documents that were moved, for the model to "
        "weigh them by; 5 to 6 tokens a document. Without it accuracy was measured lower.",
    )
    relabel: Relabel = Field(
        "auto",
        description="Whether text may move under labels that count up, which stay: `auto` where "
        "nothing in the prompt makes use of the numbers (citations, ranks, `document 2`); `true` "
        "where nobody ever does; `false` never.",
    )
    dedup: Dedup = Field(
        "off",
        description="`exact` replaces a document whose full text stands earlier in the same body "
        "with a note. Off: an author may want the repetition.",
    )
    dedup_tool_lines: bool = Field(
        False,
        description="Replace runs of lines of tool output that stand in earlier tool output. Off: "
        "it takes milliseconds for hundreds of kilobytes.",
    )
    max_added_ms: float = Field(
        1.0,
        gt=0,
        le=1000,
        description="Milliseconds after which the body is forwarded as it came; looked at between "
        "two steps. 1 is the 99th percentile for 15 documents of 4 KB.",
    )
    max_body_bytes: int = Field(
        2 << 20,
        ge=1024,
        le=64 << 20,
        description="Longest body that is looked at; 2 MiB are some 500,000 tokens.",
    )
    capacity_docs: int = Field(
        30_000,
        ge=1,
        le=10_000_000,
        description="Most documents whose order is remembered, about 0.1 KB each; where engines "
        "tell the size of their KV caches, as many as those hold together, if that is less.",
    )
    ttl_s: float = Field(
        900.0,
        gt=0,
        le=86_400,
        description="Seconds after which an order that was not sent again is forgotten.",
    )
    half_life_s: float = Field(
        600.0, gt=0, le=86_400, description="Seconds after which a document's popularity is half."
    )
    memo_entries: int = Field(
        20_000,
        ge=1,
        le=1_000_000,
        description="Messages of running conversations whose order is remembered, so that later "
        "turns repeat it; some 0.3 KB each.",
    )
    memo_ttl_s: float = Field(
        3600.0,
        gt=0,
        le=86_400,
        description="Seconds of silence after which a conversation's messages may be ordered anew.",
    )
    max_scopes: int = Field(
        32,
        ge=1,
        le=1024,
        description="Tenants times models whose popularity is counted, 0.8 MB each; the least "
        "recently used goes.",
    )
    holdout_share: float = Field(
        0.05,
        ge=0,
        lt=1,
        description="Share of requests left as received, to compare with. 0 switches the guard off "
        "as well.",
    )
    sample_answers: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Share of this path's answers that are read for the comparison, above what "
        "`bodies.sample_answers` reads already; about 50 us a chunk.",
    )
    min_gain: float = Field(
        0.01,
        ge=0,
        le=1,
        description="Share of prompt tokens found cached that reordering must add, else the route "
        "switches itself off ...",
    )
    guard_requests: int = Field(
        200,
        ge=2,
        le=10_000_000,
        description="... once so many requests of either group had their usage read.",
    )

    @model_validator(mode="after")
    def _has_room(self) -> ContextRoute:
        if self.max_docs < self.min_docs:
            raise ValueError("`max_docs` must not be below `min_docs`")
        return self

    @property
    def hook(self) -> ContextSettings:
        """The hook's part."""
        names = {field.name for field in fields(ContextSettings)} - {"delimiters"}
        declared = tuple(Delimiters(**own.model_dump()) for own in self.delimiters)
        return ContextSettings(**self.model_dump(include=names), delimiters=declared)


class Context(Section):
    """ContextPilot: documents in prompts, ordered so that prompts share longer prefixes."""

    applies: ClassVar = Applies.AT_ONCE

    routes: tuple[ContextRoute, ...] = Field(
        (),
        max_length=16,
        description="Who may be reordered; the first that fits a request counts. None: every body "
        "is forwarded as it came and nothing is looked at. A route that is changed goes on with "
        "what it remembers when only `path`, `models`, `mode`, `opt_in` or `sample_answers` are "
        "others; else, and after it was left out, it begins with an empty memory.",
    )

    @model_validator(mode="after")
    def _names_differ(self) -> Context:
        names = [route.name for route in self.routes]
        if len(set(names)) < len(names):
            raise ValueError("two routes have one name; rename one")
        return self
