"""Documents in, documents in a better order out: for programs that build their prompts themselves.

The same order index as the hook's, without prompts around it. A conversation's id makes its later
turns known: documents that it was given before come back as a note that points there, so the caller
must still have them in the prompt.

It keeps hashes and no text. Not safe for threads; a caller with several makes one for each.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from laar.context.aligner import TTL_S, OrderIndex
from laar.context.notes import WORTH_A_NOTE, duplicate_note, order_note
from laar.errors import SettingError

MAX_DOCS = 1024
"""Documents of one context; the work for pairs grows with their square."""

MAX_CONVERSATIONS = 20_000
"""Conversations remembered; the least recently used one is forgotten."""

MAX_SEEN = 4096
"""Documents remembered of one conversation, 8 bytes each and as much again for the set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reordered:
    """One context as best sent.

    Args:
        documents: the texts in sending order; a note stands for each that the conversation holds.
        order: received positions in sending order.
        repeated: received positions that a note stands for.
        note: a sentence for behind the documents that names the received order; empty if kept.
        matched: leading documents that follow an order sent before.
    """

    documents: tuple[str, ...]
    order: tuple[int, ...]
    repeated: tuple[int, ...]
    note: str
    matched: int


class Reorderer:
    """Orders documents so that prompts share longer prefixes.

    Args:
        ttl_s: an order or a conversation not used for this long is forgotten.
    """

    def __init__(self, *, ttl_s: float = TTL_S) -> None:
        self._index = OrderIndex(ttl_s=ttl_s)
        self._ttl_s = ttl_s
        self._conversations: OrderedDict[int, tuple[float, set[int]]] = OrderedDict()

    @property
    def conversations(self) -> int:
        """How many are remembered."""
        return len(self._conversations)

    def reorder(
        self,
        documents: Sequence[str],
        *,
        now: float,
        conversation: str = "",
        before: str = "",
        tenant: str = "",
        deduplicate: bool = True,
    ) -> Reordered:
        """Orders one context, and remembers that it is sent so.

        Args:
            documents: texts, best first.
            now: seconds, monotonic.
            conversation: an id; its documents are not sent twice. Empty: none.
            before: text of the prompt before the documents: only equal beginnings share a cache.
            tenant: tenants share no order.
            deduplicate: whether notes may stand for documents that the conversation holds.

        Raises:
            SettingError: there are more than `MAX_DOCS` documents, or two are equal.
        """
        texts = [text.encode(errors="surrogatepass") for text in documents]
        keys = list(map(xxhash.xxh3_64_intdigest, texts))
        if len(keys) > MAX_DOCS:
            raise SettingError(f"{len(keys)} documents; {MAX_DOCS} is the most")
        if len(set(keys)) < len(keys):
            raise SettingError("two documents are equal; send each once")
        scope = hash(tenant)
        seen = self._seen(hash((tenant, conversation)), now) if conversation else set()
        repeated = tuple(
            i
            for i, key in enumerate(keys)
            if deduplicate and key in seen and len(texts[i]) >= WORTH_A_NOTE
        )
        gone = frozenset(repeated)
        live = [i for i in range(len(keys)) if i not in gone]
        # A later turn shares its beginning with its own conversation only.
        seed = hash((scope, before, conversation if seen else ""))
        found = self._index.align(scope, seed, [keys[i] for i in live], now)
        sent = [live[at] for at in found.permutation]
        if sent:
            self._index.insert(scope, seed, [keys[i] for i in sent], now)
        if conversation and len(seen) < MAX_SEEN:
            seen.update(keys)
        moved = sent != live
        order = (*sent, *repeated) if moved else tuple(range(len(keys)))
        place = {at: i for i, at in enumerate(order)}
        return Reordered(
            documents=tuple(
                duplicate_note(documents[i]) if i in gone else documents[i] for i in order
            ),
            order=order,
            repeated=repeated,
            note=order_note([None] * len(order), [place[i] for i in range(len(order))])
            if moved
            else "",
            matched=found.matched,
        )

    def _seen(self, conversation: int, now: float) -> set[int]:
        """The documents that a conversation holds; a look-up keeps it alive."""
        known = self._conversations.pop(conversation, None)
        seen = known[1] if known is not None and now - known[0] <= self._ttl_s else set[int]()
        self._conversations[conversation] = now, seen
        if len(self._conversations) > MAX_CONVERSATIONS:
            self._conversations.popitem(last=False)
        return seen
