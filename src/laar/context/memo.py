"""Remember changes to texts of running conversations, so that later turns repeat them.

Clients resend the original history, so the key is a hash of the text as *received*. With a hash of
the text as sent, as in the published program, the next turn would look new and lose documents. Only
positions, orders, hashes and documents' names are kept.

Other processes receive positions and orders under salted keys (`saved`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import islice

import msgspec
import xxhash

from laar.context.rewrite import BlockChange


@dataclass(frozen=True, slots=True)
class Remembered:
    """The changes made to a text; empty if it was sent unchanged.

    Args:
        changes: the changes to its blocks.
        docs: hashes of documents sent in full, to which notes in later turns may refer.
    """

    changes: tuple[BlockChange, ...] = ()
    docs: Sequence[int] = ()


MAX_ENTRIES = 20_000
"""Maximum number of messages of running conversations whose changes are kept (0.7 KB each)."""

MAX_MOVED = 400_000
"""Maximum number of documents in these changes (0.3 KB each): 20 per message, of at most 256."""

MAX_SAVED = 2048
"""Number of latest messages in a snapshot: 0.4 KB each with 6 documents, 1.9 KB with 40."""


class Memo:
    """A bounded LRU map.

    Args:
        secret: returns the secret of the keys.
        tell: called with the key of each changed text and its changes, for other processes.
    """

    def __init__(
        self,
        secret: Callable[[], bytes] = bytes,
        tell: Callable[[int, bytes], object] | None = None,
    ) -> None:
        self._entries: OrderedDict[int, Remembered | bytes] = OrderedDict()
        self._moved = 0
        self._secret = secret
        self.tell = tell

    def __len__(self) -> int:
        return len(self._entries)

    def key(self, scope: int, raw: bytes) -> int:
        """Return the key of a text."""
        text = scope.to_bytes(8, "little") + xxhash.xxh3_128_digest(raw)
        return int.from_bytes(blake2b(text, digest_size=8, key=self._secret()).digest(), "little")

    def get(self, key: int) -> Remembered | bytes | None:
        """Return a text's changes, if known, and refresh the entry; they may be in `saved` form."""
        if key in self._entries:
            self._entries.move_to_end(key)
        return self._entries.get(key)

    def put(self, key: int, what: Remembered | bytes) -> None:
        """Store the changes to a text; evict the oldest entries if there are too many."""
        entries = self._entries
        self._moved += _moved(what) - _moved(entries.pop(key, b""))
        entries[key] = what
        while len(entries) > MAX_ENTRIES or (self._moved > MAX_MOVED and len(entries) > 1):
            self._moved -= _moved(entries.popitem(last=False)[1])

    def latest(self) -> Iterator[tuple[int, bytes]]:
        """Yield keys and `saved` changes of the latest changed texts; iterate on any thread."""
        kept = [*islice(reversed(self._entries.items()), MAX_SAVED)][::-1]
        return ((key, saved(what)) for key, what in kept if getattr(what, "changes", what))


def _moved(what: Remembered | bytes) -> int:
    """Return the number of documents moved, assuming 30 bytes each in saved changes."""
    return len(what) // 30 if isinstance(what, bytes) else sum(len(c.order) for c in what.changes)


def saved(what: Remembered | bytes) -> bytes:
    """Return changes for other processes: positions, without documents' names and hashes."""
    return what if isinstance(what, bytes) else msgspec.json.encode(list(map(_bare, what.changes)))


def _bare(change: BlockChange) -> BlockChange:
    items = tuple([item._replace(label=item.label and "") for item in change.block.items])
    return replace(change, block=replace(change.block, items=items, numbers=()))
