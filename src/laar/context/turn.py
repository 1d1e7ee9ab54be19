"""Plan the changes to a request: each text of the prompt, in prompt order.

Documents of the last turn are aligned with the index. Older text is changed as in its own turn if
the memo has those changes, and otherwise stays unchanged, so that later turns extend the text sent
before and never rewrite it. A note may replace a document only if its full text is sent earlier in
the same body; candidates are found by hash, then compared.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import xxhash

from laar.context.blocks import MAX_DOCS, MIN_DOCS, Block, SkippedText
from laar.context.bodies import Text, prompt_texts, said_before
from laar.context.citations import ids_of, numbered
from laar.context.edges import NAME_CHARS
from laar.context.formats import scan
from laar.context.formats.jsonspans import Literal, Path
from laar.context.lines import SeenText
from laar.context.memo import Remembered
from laar.context.notes import WORTH_A_NOTE, head
from laar.context.rewrite import BlockChange, as_received, is_lossless, is_too_small, rewrite
from laar.context.settings import Reason

if TYPE_CHECKING:
    from laar.context.hook import ContextHook


class SentOrder(NamedTuple):
    """The documents of a block, as sent and as received, after a prompt with the hash `seed`."""

    seed: int
    docs: tuple[int, ...]
    received: tuple[int, ...]


@dataclass(slots=True)
class TurnPlan:
    """The changes to a body, the changed body, and what to learn from it. `scope`: `TurnPlanner`.

    Args:
        body: the body to forward; the same object as the received one if unchanged.
        conversation: hash of the conversation's beginning.
        held_out: the documents stay in order, for comparison or because the guard requires that.
        edits: new texts by path.
        orders: the documents of each block that were aligned or could have been.
        received: the documents of each block that is new, in the order received.
        seen: texts to learn documents from.
        memos: what to remember about each text in the conversation.
        noted: whether the hook has noted the orders.
        reason: what was done, or why no document was moved.
        document_bytes: total bytes of the last turn's documents.
        predicted_bytes: bytes of the leading documents that match an order sent before, and so may
            be cached; in the received order if the request is left unchanged.
        baseline_bytes: the same if all requests had been sent as received; the difference is the
            hook's gain.
        removed_bytes: bytes of text replaced by notes, minus the notes.
        shapes: number of documents in the last turn's blocks, by format.
        numbers: the client's document numbers by the ids that replaced them, to restore in answers
            (`laar.context.citations`).
    """

    body: bytes = b""
    scope: int = 0
    conversation: int = 0
    held_out: bool = False
    body_bytes: int = 0
    edits: dict[Path, str] = field(default_factory=dict)
    orders: list[SentOrder] = field(default_factory=list)
    received: list[tuple[int, ...]] = field(default_factory=list)
    seen: list[SeenText] = field(default_factory=list)
    memos: list[tuple[int, Remembered]] = field(default_factory=list)
    noted: bool = False
    reason: Reason = Reason.NO_DOCUMENTS
    document_bytes: int = 0
    predicted_bytes: int = 0
    baseline_bytes: int = 0
    removed_bytes: int = 0
    shapes: list[tuple[str, int]] = field(default_factory=list)
    numbers: dict[str, str] = field(default_factory=dict)

    @property
    def documents(self) -> int:
        """Number of documents in the blocks of the last turn."""
        return sum([count for _, count in self.shapes])


@dataclass(slots=True, kw_only=True)
class TurnPlanner:
    """Plans the changes to a request.

    Args:
        hook: settings, and what was learned; `commit` adds the contents of the plan.
        scope: hash of tenant, route and model.
        ends_at: time on the hook's clock after which the plan is dropped.
        observes: the body will be forwarded unchanged, so the guard does not apply.
        restores: whether ids in the answer can be replaced by numbers.
        numbers: returns the numbers in the received body, and new ids; none may be an id.
    """

    hook: ContextHook
    scope: int
    now: float
    ends_at: float
    observes: bool
    restores: bool
    numbers: Callable[[], set[int]]
    _plan: TurnPlan = field(init=False)
    _control: bool = field(init=False, default=False)
    _late: bool = field(init=False, default=False)  # whether time is up
    _sent: list[str] = field(init=False, default_factory=list)  # the outgoing texts so far
    _in_full: set[int] = field(init=False, default_factory=set)  # hashes of documents in `_sent`

    def plan(self, body: dict[str, object], api: str, raw: bytes) -> TurnPlan:
        """Return the plan for a body; `raw` is as for `prompt_texts`. Call it once."""
        self._plan = plan = TurnPlan(scope=self.scope)
        texts = prompt_texts(body, api, raw)
        self._draw_groups(texts)
        moved: Path | None = None  # content whose blocks moved; their texts stay unchanged
        for text in texts:
            if text.path[0] == "prompt":  # those of a batch are independent
                self._sent, self._in_full = [], set()
            is_moved = moved is not None and text.path[: len(moved)] == moved
            made = text.value if is_moved else self._outgoing(body, text)
            if made != text.value:
                plan.edits[text.path] = Literal(made) if text.parts else made
                moved = text.path if text.parts else moved
            self._sent.append(made)
        return plan

    # -- one text ------------------------------------------------------------------------------

    def _outgoing(self, body: dict[str, object], text: Text) -> str:
        """Return the outgoing form of a text."""
        if len(text.value) < _SHORT and _MARKS.isdisjoint(text.value):
            return text.value
        memo_key = self.hook.memo.key(self.scope, text.value.encode())
        known = self.hook.memo.get(memo_key)
        if isinstance(known, bytes):
            data, known = known, Remembered()  # if any change does not fit, make none
            with suppress(ValueError, LookupError, RecursionError, SkippedText):
                known = Remembered(tuple(self._checked(_read_changes(data), text)))
            self.hook.memo.put(memo_key, known)
        ids = [int(own) for change in known.changes for own in change.ids] if known else ()
        if ids and not (self.restores and self.numbers().isdisjoint(ids)):
            known = None
        if not text.fresh and known is not None:  # as sent in its own turn
            self._in_full.update(known.docs)
            with suppress(SkippedText):
                return self._carried_out(text, known.changes) if known.changes else text.value
            return text.value
        if self._late or not (text.fresh or self.hook.settings.dedup != "off"):
            return text.value
        try:
            return self._planned(body, text, memo_key, known)
        except SkippedText as refused:
            if refused.reason is not Reason.OVER_BUDGET:
                raise
            # Even when the time is up, older texts are sent as before.
            self._late, self._plan.reason = True, refused.reason
            self._plan.orders.clear()
            return text.value

    def _checked(self, changes: Sequence[BlockChange], text: Text) -> Iterator[BlockChange]:
        """Yield untrusted changes, with documents' names, that neither add nor lose text."""
        if not is_lossless(text.value, changes):
            raise ValueError
        for change in changes:
            block, ids = change.block, change.ids
            if len(ids) not in {0, len(block.items)} or not "".join(("0", *ids)).isdecimal():
                raise ValueError
            made = replace(block, numbers=())
            if change.ids:
                made = numbered(text.value, replace(made, fixed=True))
                made = replace(made, end=block.end)
            elif block.items[0].label is not None:
                names = {item.start: item.label for own in _scan(text) for item in own.items}
                items = [
                    x._replace(label=names.get(x[0]) or head(text.value[x[0] : x[1]])[:NAME_CHARS])
                    for x in block.items
                ]
                made = replace(made, items=tuple(items))
            yield replace(change, block=made)

    def _planned(
        self, body: dict[str, object], text: Text, memo_key: int, known: Remembered | None
    ) -> str:
        """Return the new form of a last-turn text, or of an older text that notes may refer to."""
        before_changes = known.changes if known is not None else ()
        blocks = [change.block for change in before_changes] or self._blocks(text)
        self._check()
        if not blocks:
            return text.value
        docs = [
            [xxhash.xxh3_64_intdigest(text.value[a:b].encode()) for _, _, a, b, _ in block.items]
            for block in blocks
        ]
        own = before_changes or [None] * len(blocks)
        if text.fresh:
            before = xxhash.xxh3_64_intdigest(said_before(body, text.path))
            changes = [
                self._fresh(text.value, before, block, keys, change)
                for block, keys, change in zip(blocks, docs, own, strict=True)
            ]
        else:
            changes = list(map(as_received, blocks))
        made = text.value
        if any(change.moved or change.repeated for change in changes):
            self._check()
            try:
                made = self._carried_out(text, changes)
            except SkippedText as refused:
                self._plan.reason = refused.reason
                self._plan.orders.clear()
                changes = list(map(as_received, blocks))
        self._remember(memo_key, docs, changes, is_changed=made != text.value)
        return made

    def _blocks(self, text: Text) -> list[Block]:
        """Return the blocks of a text that may change; empty if it stays unchanged."""
        refused: Reason | None = None
        blocks: list[Block] = []
        try:
            blocks = _scan(text)
        except SkippedText as error:
            refused = error.reason
        if not blocks and not text.parts:
            block, seen = self.hook.recurrences.find(self.scope, text.value)
            if seen is not None and text.fresh:
                self._plan.seen.append(seen)
            if block is not None and MIN_DOCS <= len(block.items) <= MAX_DOCS:
                blocks = [block]
        if self.restores:
            blocks = [numbered(text.value, block) for block in blocks]
        if not blocks and refused is not None:
            self._note(refused)
        if text.fresh:
            self._plan.shapes += [(block.shape, len(block.items)) for block in blocks]
        if any(block.fixed for block in blocks):
            self._note(Reason.POSITIONAL_LABELS)
            return []
        return blocks

    def _carried_out(self, text: Text, changes: Sequence[BlockChange]) -> str:
        """Return the text with its changes applied, and count them; raise Refused if unsafe."""
        bare, annotated = rewrite(text.value, changes, self._sent)
        for change in changes:
            for item, own in zip(change.block.items, change.ids, strict=False):
                self._plan.numbers[own] = item.label or ""
        if any(change.repeated for change in changes):
            self._plan.removed_bytes += len(text.value) - len(bare)
        return annotated

    def _remember(
        self,
        memo_key: int,
        docs: Sequence[Sequence[int]],
        changes: Sequence[BlockChange],
        *,
        is_changed: bool,
    ) -> None:
        """Remember a text's changes and the documents sent in full, for later turns."""
        in_full = array("Q")
        for own_keys, change in zip(docs, changes, strict=True):
            in_full.extend([key for i, key in enumerate(own_keys) if i not in change.repeated])
        self._in_full.update(in_full)
        kept = tuple(changes) if is_changed else ()
        self._plan.memos.append((memo_key, Remembered(kept, in_full)))

    # -- one block of the last turn ------------------------------------------------------------

    def _fresh(
        self, text: str, before: int, block: Block, own_keys: Sequence[int], own: BlockChange | None
    ) -> BlockChange:
        """Return the change to a block.

        Args:
            text: the text.
            before: hash of the prompt before the text.
            block: the block.
            own_keys: hashes of the documents' own texts.
            own: the change when this text was last sent; None for a new text.
        """
        self._check()
        repeated = own.repeated if own else self._repeated(block, own_keys)
        spans = [text[start:end].encode() for start, end, *_ in block.items]
        keys, sizes = list(map(xxhash.xxh3_64_intdigest, spans)), list(map(len, spans))
        live = [i for i in range(len(spans)) if i not in repeated]  # these are sent in full
        docs = [keys[i] for i in live]
        left = BlockChange(block, tuple(range(len(spans))), repeated)
        if not self._can_align(block, docs, sum(sizes)):
            return left
        may_move = own is not None
        if own is None:
            self._plan.received.append(tuple(docs))
            first, stop, met = self.hook.sequences.movable(self.scope, docs)
            may_move = stop - first >= MIN_DOCS and (not repeated or stop - first == len(live))
            if met and not may_move:
                self._note(Reason.SAME_ORDER)
            if may_move and stop - first < len(live):
                block = block.part(first, stop)
                docs = keys = keys[first:stop]
                sizes, live = sizes[first:stop], list(range(stop - first))
                left = as_received(block)
                may_move = not is_too_small(block, sum(sizes))
        start = xxhash.xxh3_64_intdigest(text[: block.items[0].start].encode())
        seed = hash((self.scope, before, start))
        change = left
        if not self._stays() and own:
            change = own
        elif not self._plan.held_out and may_move:
            order = self.hook.index.align(self.scope, seed, docs, self.now)
            change = self._changed(block, docs, _whole(live, order, repeated), repeated) or left
        self._count(change, keys, sizes, seed)
        return change

    def _changed(
        self, block: Block, docs: Sequence[int], order: tuple[int, ...], repeated: frozenset[int]
    ) -> BlockChange | None:
        """Return the change to an order; None if required ids are unavailable."""
        if not block.numbers:
            return BlockChange(block, order, repeated)
        self.numbers().update(map(int, self._plan.numbers))  # ids of earlier turns
        ids = ids_of(self.scope, docs, self.numbers())
        return BlockChange(block, order, repeated, ids) if ids and not repeated else None

    def _can_align(self, block: Block, docs: Sequence[int], size: int) -> bool:
        """Return whether the documents are distinct and worth ordering; note the reason."""
        if is_too_small(block, size):
            self._note(Reason.TOO_SMALL)
            return False
        if not docs:
            return False
        differ = len(set(docs)) == len(docs)
        self._note(Reason.UNCHANGED if differ else Reason.REPEATED)
        return differ

    def _count(
        self, change: BlockChange, keys: Sequence[int], sizes: Sequence[int], seed: int
    ) -> None:
        """Add a block to the plan: its order as sent and the expected hits."""
        plan = self._plan
        sent = [i for i in change.order if i not in change.repeated]
        order, received = (tuple([keys[i] for i in places]) for places in (sent, sorted(sent)))
        matched = self.hook.index.match(seed, order)
        baseline = self.hook.received.match(seed, received)
        plan.orders.append(SentOrder(seed, order, received))
        plan.predicted_bytes += sum([sizes[i] for i in sent[:matched]])
        plan.baseline_bytes += sum([sizes[i] for i in sorted(sent)[:baseline]])
        plan.document_bytes += sum(sizes)

    def _repeated(self, block: Block, own_keys: Sequence[int]) -> frozenset[int]:
        """Return the items that notes can replace, since the body contains their text before."""
        nothing_before = not self._in_full and len(set(own_keys)) == len(own_keys)
        if self.hook.settings.dedup == "off" or nothing_before:
            return frozenset()
        here: set[int] = set()
        repeated: set[int] = set()
        for i, (item, key) in enumerate(zip(block.items, own_keys, strict=True)):
            if item.text_end - item.text_start < WORTH_A_NOTE:
                continue
            if key in self._in_full or key in here:
                repeated.add(i)
            here.add(key)
        return frozenset(repeated)

    # -- all of the request --------------------------------------------------------------------

    def _draw_groups(self, texts: Sequence[Text]) -> None:
        """Decide whether this conversation is left unchanged."""
        if self.observes or not texts:
            return
        # All turns of a conversation begin with the same text.
        first = next((text for text in texts if text.role == "user"), texts[0])
        conversation = hash((self.scope, xxhash.xxh3_64_intdigest(first.value.encode())))
        self._plan.conversation = conversation
        self._control = self.hook.guard.holds_out(conversation)

    def _check(self) -> None:
        """Drop the plan if its time is up; called between steps."""
        if self.hook.clock() > self.ends_at:
            raise SkippedText(Reason.OVER_BUDGET)

    def _stays(self) -> bool:
        """Return whether the guard requires the received order for this request."""
        plan = self._plan
        if self._control:
            plan.held_out, plan.reason = True, Reason.HOLDOUT
        elif not self.observes and self.hook.guard.off:
            plan.held_out, plan.reason = True, Reason.AUTO_OFF
        return plan.held_out

    def _note(self, reason: Reason) -> None:
        """Record a reason: the plan keeps the first, or the latest about usable documents."""
        usable = reason in (Reason.UNCHANGED, Reason.SAME_ORDER)
        if usable or self._plan.reason is Reason.NO_DOCUMENTS:
            self._plan.reason = reason


_read_changes = msgspec.json.Decoder(tuple[BlockChange, ...]).decode

_SHORT = 200
_MARKS = frozenset("\n<[{")
"""A short text without any of these contains at most one document, so it needs no scan."""


def _scan(text: Text) -> list[Block]:
    return scan(text.value, is_parts=text.parts, by_tool=text.role == "tool")


def _whole(
    live: Sequence[int], order: tuple[int, ...], repeated: frozenset[int]
) -> tuple[int, ...]:
    """Return the order of all items; if anything moves, repeated items go last."""
    if order == tuple(range(len(live))):
        return tuple(range(len(live) + len(repeated)))
    return (*(live[j] for j in order), *sorted(repeated))
