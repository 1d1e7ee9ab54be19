"""One request's plan: the changes to each text of the prompt, in prompt order.

Text of the last turn is aligned with the index; older text repeats the changes of its own turn, if
the memo has them, and is left as received otherwise. So later turns extend the text sent before and
never rewrite it. A document may be pointed at only where its full text went out earlier in the same
body, which is looked up by hash and then compared.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import xxhash

from laar.context.aligner import OrderIndex
from laar.context.blocks import Block, Refused
from laar.context.bodies import Raw, Text, answer_form, prompt_texts, said_before
from laar.context.cache import DocCache
from laar.context.chunks import shorten
from laar.context.formats import Surroundings, Unknown, scan, words
from laar.context.formats.jsonspans import Literal, Path
from laar.context.formats.openers import label_of
from laar.context.guard import GainGuard
from laar.context.memo import Memo, Remembered
from laar.context.notes import WORTH_A_NOTE, order_note_bytes
from laar.context.rewrite import Change, rewrite, verified
from laar.context.settings import ContextSettings, Reason

__all__ = ["Turn", "TurnPlan", "surroundings"]


@dataclass(slots=True, kw_only=True)
class TurnPlan:
    """The changes to make to a body; see `HookResult` for the counts."""

    edits: dict[Path, str] = field(default_factory=dict)
    orders: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    memos: list[tuple[int, Remembered]] = field(default_factory=list)
    reason: Reason = Reason.NO_DOCUMENTS
    conversation: int = 0  # hash of its beginning
    held_out: bool = False
    permutation: tuple[int, ...] = ()
    documents: int = 0
    matched: int = 0
    document_bytes: int = 0
    predicted_bytes: int = 0
    baseline_bytes: int = 0
    removed_bytes: int = 0
    shapes: list[tuple[str, int]] = field(default_factory=list)
    deduplicated: bool | None = None  # None: nothing is repeated


_SAID_BEGIN, _SAID_END = 2000, 1000
"""Characters of the prompt's other texts that are read for evidence."""


def surroundings(texts: Sequence[Text], text: Text, answer: str = "") -> Surroundings:
    """The evidence that the rest of a prompt gives about one of its texts.

    It is that of the text's own turn, so that later turns find in it what its own turn found.
    """
    if text.path[0] == "prompt":  # several prompts have nothing to do with each other
        return Surroundings(answer=answer)
    said, asked, later = [], [], []
    asked_apart = False
    for other in texts:
        if other.path == text.path or other.parts:
            continue
        if other.turn > text.turn:
            if other.role != "tool":
                later.append(_asks(other.value))
            continue
        asked_apart = asked_apart or other.role == "user"
        if other.role == "tool":
            continue
        if text.parts and other.path[:-2] == text.path and label_of(other.value) is not None:
            continue  # one of the documents
        own = other.turn == text.turn or text.role == "tool"
        if other.role == "system" or own:
            said.append((other.role == "system", _ends(other.value)))
        if other.role == "system" or own or len(other.value) <= _STANDING:
            asked.append(other.value[:_MOST_ASKED])
    system = [value for is_system, value in said if is_system][:_MOST_SAID]
    others = [value for is_system, value in said if not is_system][-_MOST_SAID:]
    return Surroundings(
        said="\n".join((*system, *others)),
        asked=tuple(asked),
        later=tuple(later),
        answer=answer,
        by_tool=text.role == "tool"
        and words.TOOL.search(text.tool) is not None
        and words.READS.search(text.tool) is None,
        asked_apart=asked_apart,
        parts=text.parts,
    )


def _ends(value: str) -> str:
    if len(value) <= _SAID_BEGIN + _SAID_END:
        return value
    return f"{value[:_SAID_BEGIN]}\n{value[-_SAID_END:]}"


def _asks(value: str) -> str:
    """A text of a later turn without documents of its own, whose labels are no numbers of others.

    Where it is long these are in the middle.
    """
    parts = [value]
    if len(value) > _STANDING:
        head, tail = value[:_STANDING], value[-_STANDING:]
        parts = [*_PARAGRAPHS.split(head)[:-1][:1], *_PARAGRAPHS.split(tail)[1:][-2:]]
        parts.append(tail.rstrip().rpartition("\n")[2])
        parts = [part for part in parts if len(part) <= _LONGEST_ASKED]
    lines = [line for part in parts for line in part.split("\n")]
    others = [line for line in lines if _LABEL.match(line) is None]
    return "\n".join(others if len(others) + 1 < len(lines) or len(value) > _STANDING else lines)


_LONGEST_ASKED = 300
_PARAGRAPHS = re.compile(r"\n\s*\n")
_LABEL = re.compile(
    r"[\W_]{0,12}(?:[^\W\d]{1,24}[^\w\n]{0,4})?\d{1,4}(?:[^\w\s,]|\s*$)|\s*<[^<>\n]{1,80}>"
)
"""The beginning of a line that begins a document."""

_MOST_SAID = 4

_STANDING = 600
"""Characters of a message of an older turn that may be a request for all turns to come; longer
ones hold documents."""

_MOST_ASKED = 16_000
"""Characters of a text that are searched for what gives an order a meaning."""


class Turn:
    """Plans one request.

    Args:
        settings: settings of the hook.
        index: orders sent; only read.
        memo: decisions of running conversations; only read.
        guard: decides which requests are left alone; None leaves none.
        received: orders as they came, where all of them are sent so (``observe``); else None.
        scope: hash of tenant, route and model.
        route: name of the route, for the guard.
        now: seconds, monotonic.
        check: called between steps; raises to stop.
    """

    def __init__(
        self,
        settings: ContextSettings,
        index: OrderIndex,
        memo: Memo,
        *,
        guard: GainGuard | None,
        received: DocCache | None = None,
        scope: int,
        route: str,
        now: float,
        check: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._index = index
        self._memo = memo
        self._guard = guard
        self._received = received
        self._scope = scope
        self._route = route
        self._now = now
        self._check = check
        self._plan = TurnPlan()
        self._texts: Sequence[Text] = ()
        self._answer = ""
        self._said: list[str] = []  # the outgoing texts so far
        self._seen: set[int] = set()  # documents in them, by hash of their text
        self._with_blocks: set[Path] = set()
        self._control = False
        self._dedups = settings.dedup == "exact"
        self._least = 0 if settings.delimiters else _SHORT

    def plan(self, body: dict[str, object], api: str, raw: Raw | None = None) -> TurnPlan:
        """Goes through the prompt once; `raw` as for `prompt_texts`."""
        plan = self._plan
        self._texts = texts = prompt_texts(body, api, raw)
        self._answer = answer_form(body)
        moved: Path | None = None  # a content whose blocks were moved; these stay as they are
        if self._guard is not None and texts:
            plan.conversation = self._conversation()
            self._control = self._guard.holds_out(plan.conversation)
            if self._settings.dedup == "auto":
                self._dedups = self._guard.dedups(self._route, plan.conversation)
        for text in texts:
            if text.path[0] == "prompt":  # of a batch, whose prompts are answered apart
                self._said, self._seen = [], set()
            if moved is not None and text.path[: len(moved)] == moved:
                self._said.append(text.value)
                continue
            made = self._text(body, text) if text.role in self._settings.roles else text.value
            if made != text.value:
                plan.edits[text.path] = Literal(made) if text.parts else made
                moved = text.path if text.parts else moved
            self._said.append(made)
            self._check()
        if self._settings.dedup_tool_lines and "tool" in self._settings.roles:
            self._shorten([text for text in texts if text.role == "tool"])
        return plan

    def _conversation(self) -> int:
        """The beginning of a conversation, which all its turns have in common."""
        first = next((text for text in self._texts if text.role == "user"), self._texts[0])
        return hash((self._scope, xxhash.xxh3_64_intdigest(first.value.encode())))

    def _text(self, body: dict[str, object], text: Text) -> str:
        if len(text.value) < self._least and _MARKS.isdisjoint(text.value):
            return text.value
        raw = text.value.encode()
        key = hash((self._scope, xxhash.xxh3_64_intdigest(raw)))
        known = self._memo.get(key, self._now)
        if known is not None:  # remembered because it has documents
            self._with_blocks.add(text.path)
        if not text.fresh and (not self._dedups if known is None else not known.orders):
            # Never seen here, or left as it was received when it was sent.
            self._seen.update(known.docs if known else ())
            return text.value
        try:
            around = surroundings(self._texts, text, self._answer)
            blocks = scan(text.value, self._settings, around)
        except Refused as refused:
            if isinstance(refused, Unknown):
                self._plan.shapes.append((f"unknown_{refused.kind}", 0))
            self._note(refused.reason)
            return text.value
        if text.fresh:
            self._plan.shapes += [(block.shape, block.documents) for block in blocks]
        if known is not None and [len(order) for order in known.orders] != [
            len(block.items) for block in blocks
        ]:
            known = None
        if blocks:
            self._with_blocks.add(text.path)
        for block in blocks:
            if block.held is not None:
                self._note(block.held)
        if not blocks or any(block.held is not None for block in blocks):
            return text.value
        before = said_before(body, text.path) if text.fresh else b""
        changes: list[Change] = []
        sent: list[int] = []
        read = _reader(text.value, raw)
        for i, block in enumerate(blocks):
            docs = _own_keys(read, block)
            if known:
                repeated = known.repeated[i]
            else:
                repeated = self._repeated(block, docs) if text.fresh else frozenset()
            if text.fresh:
                before_order = known.orders[i] if known else None
                order = self._fresh(text.value, read, block, before, before_order, repeated)
            else:
                order = known.orders[i] if known else tuple(range(len(block.items)))
            changes.append(Change(block, order, repeated))
            sent += [doc for j, doc in enumerate(docs) if j not in repeated]
        made = self._made(text, changes)
        if made is None:  # not as it should be: as received, with all of its documents
            made, changes = text.value, []
            sent = [doc for block in blocks for doc in _own_keys(read, block)]
        self._seen.update(sent)
        moved = made != text.value
        self._plan.memos.append(
            (
                key,
                Remembered(
                    tuple(change.order for change in changes) if moved else (),
                    tuple(change.repeated for change in changes) if moved else (),
                    array("Q", sent),
                ),
            )
        )
        return made

    def _made(self, text: Text, changes: list[Change]) -> str | None:
        """The text with its changes, checked; None where the check fails."""
        if not any(change.moved or change.repeated for change in changes):
            return text.value
        bare, annotated = rewrite(text.value, changes)
        self._check()
        if not verified(text.value, changes, bare, self._said):
            self._plan.reason = Reason.CHECK_FAILED
            self._plan.orders.clear()
            return None
        self._plan.removed_bytes += len(text.value) - len(bare)
        return annotated if self._settings.annotate else bare

    def _repeated(self, block: Block, docs: Sequence[int]) -> frozenset[int]:
        """Items whose text is in the outgoing body before them, if these give way to notes."""
        if self._settings.dedup == "off" or self._control or self._reads_nothing_before(docs):
            return frozenset()
        here: set[int] = set()
        repeated: set[int] = set()
        for i, (item, key) in enumerate(zip(block.items, docs, strict=True)):
            if item.text_end - item.text_start < WORTH_A_NOTE:
                continue
            if key in self._seen or key in here:
                repeated.add(i)
            here.add(key)
        if not repeated:
            return frozenset()
        self._plan.deduplicated = self._dedups
        return frozenset(repeated) if self._dedups else frozenset()

    def _reads_nothing_before(self, docs: Sequence[int]) -> bool:
        """Whether no document can be a repetition, of an earlier one or of one here."""
        return not self._seen and len(set(docs)) == len(docs)

    def _fresh(
        self,
        text: str,
        read: _Read,
        block: Block,
        before: bytes,
        known: tuple[int, ...] | None,
        repeated: frozenset[int],
    ) -> tuple[int, ...]:
        """The order of a block of the last turn."""
        plan, n = self._plan, len(block.items)
        received = tuple(range(n))
        spans = [read(item.start, item.end) for item in block.items]
        size = sum(map(len, spans))
        note = order_note_bytes(n) if self._settings.annotate and not block.silent else 0
        if max(0, size - note) < self._settings.min_saving_bytes:
            self._note(Reason.TOO_SMALL)
            return received
        keys = [xxhash.xxh3_64_intdigest(span) for span in spans]
        live = [i for i in received if i not in repeated]
        if not live:
            return received
        if len({keys[i] for i in live}) != len(live):
            self._note(Reason.REPEATED)
            return received
        self._note(Reason.UNCHANGED)
        start = xxhash.xxh3_64_intdigest(text[: block.items[0].start].encode())
        seed = hash((self._scope, xxhash.xxh3_64_intdigest(before), start))
        found = self._index.align(
            self._scope, seed, [keys[i] for i in live], self._now, careful=block.careful
        )
        order = known or _whole(live, found.permutation, repeated)
        gained = sum(len(spans[live[j]]) for j in found.permutation[: found.matched])
        gained -= sum(len(spans[i]) for i in live[: found.baseline])
        if known is None and gained < note and size < _WORTH_NOTES * note:
            order = _whole(live, range(len(live)), repeated)  # the note would cost more
        if self._stays():
            order = received
        sent = [i for i in order if i not in repeated]
        orders = tuple(keys[i] for i in sent)
        plan.orders.append((seed, orders))
        if not plan.documents:
            plan.permutation = order
        plan.documents += n
        # The expected hits in the order chosen; also for a request that is left alone.
        aligned = [live[j] for j in found.permutation[: found.matched]]
        if known:
            aligned = sent[: self._index.match(seed, orders)]
        plan.matched += len(aligned)
        plan.predicted_bytes += sum(len(spans[i]) for i in aligned)
        baseline = found.baseline
        if self._received is not None:  # the index holds orders that were not sent
            baseline = max(0, self._received.put((seed, *(keys[i] for i in live))) - 1)
        plan.baseline_bytes += sum(len(spans[i]) for i in live[:baseline])
        plan.document_bytes += sum(map(len, spans))
        return order

    def _stays(self) -> bool:
        """Whether this request keeps the received order, by the guard."""
        plan = self._plan
        if self._control:
            plan.held_out, plan.reason = True, Reason.HOLDOUT
        elif self._guard is not None and self._guard.is_off(self._route):
            plan.held_out, plan.reason = True, Reason.AUTO_OFF
        return plan.held_out

    def _shorten(self, texts: Sequence[Text]) -> None:
        """Lines of tool output without documents, which are dealt with already."""
        plan = self._plan
        said = [plan.edits.get(text.path, text.value) for text in texts]
        for text, old, new in zip(texts, said, shorten(said), strict=True):
            if new != old and text.path not in self._with_blocks:
                plan.edits[text.path] = new
                plan.removed_bytes += len(old) - len(new)
        self._check()

    def _note(self, reason: Reason) -> None:
        """Keeps the most informative reason: that documents were fit, else the first refusal."""
        if reason is Reason.UNCHANGED or self._plan.reason is Reason.NO_DOCUMENTS:
            self._plan.reason = reason


_Read: TypeAlias = "Callable[[int, int], bytes | memoryview]"
"""Gives a part of a text in UTF-8."""


def _reader(text: str, raw: bytes) -> _Read:
    """Reads `text`, which is `raw` in UTF-8; where both have the same places nothing is copied."""
    if len(raw) != len(text):
        return lambda start, end: text[start:end].encode()
    whole = memoryview(raw)
    return lambda start, end: whole[start:end]


def _own_keys(read: _Read, block: Block) -> list[int]:
    """Hashes of the documents' own texts."""
    return [xxhash.xxh3_64_intdigest(read(item[2], item[3])) for item in block.items]


_SHORT = 200
_MARKS = frozenset("\n<[{")
"""A short text with none of them holds one document at most, so it needs no scan."""

_WORTH_NOTES = 8
"""How many times a note's length documents must have for their order to be an investment: moved so
that later requests may share it, though nothing is known to be shared yet."""


def _whole(
    live: Sequence[int], permutation: Sequence[int], repeated: frozenset[int]
) -> tuple[int, ...]:
    """The order of all items: repeated ones stay in place if nothing moves, else they go last."""
    if tuple(permutation) == tuple(range(len(live))):
        return tuple(range(len(live) + len(repeated)))
    return (*(live[j] for j in permutation), *sorted(repeated))
