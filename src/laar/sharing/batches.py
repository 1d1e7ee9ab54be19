"""Records in batches, as JSON, which pickers send each other.

    {"v": 2, "ns": namespace, "from": origin, "seq": 7, "key": id of the hashes' secret,
     "t": wall clock, "open": oldest open entry, "full": false,
     "at": [address, ...], "load": [numbers of the first address, of the second, ...],
     "d": [[tag, field, ...], ...]}

JSON, since orjson reads and writes it faster than the alternatives, and an operator can look at it.
Hashes are base64 of 64-bit integers. No input is trusted: an invalid record is left out and
counted, a batch of another schema or namespace is not read at all. Loads are most of the traffic,
so they are one list of numbers, and are checked together.
"""

from __future__ import annotations

import binascii
import math
import sys
from array import array
from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

import orjson

from laar.accuracy.features import Features
from laar.accuracy.online import Taken
from laar.core.engine_model import Sample
from laar.errors import LaarError
from laar.health import Kind, Word
from laar.sharing.records import (
    Cleared,
    Ended,
    Entered,
    Heard,
    Hello,
    Judged,
    Learned,
    Leaving,
    Load,
    Record,
    Reported,
    StoredAt,
    Weights,
)

__all__ = [
    "MAX_BATCH_BYTES",
    "MAX_TEXT_CHARS",
    "SCHEMA",
    "Batch",
    "Unreadable",
    "read_batch",
    "read_hashes",
    "write_batch",
    "write_hashes",
]

SCHEMA = 2

MAX_BATCH_BYTES = 4 << 20
"""Longest batch that is read. All loads of 10,000 endpoints are 1 MB, a longest chain 50 kB."""

MAX_RECORDS = 20_000
MAX_TEXT_CHARS = 1024
MAX_BLOCKS = 65_536
_LARGEST = 1e12
_NUMBERS = len(Load._fields)


class Unreadable(LaarError):  # noqa: N818 - what it is, not that it is an error
    """A batch that is not for this picker; `reason` is one of few."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Batch(NamedTuple):
    """Records of one picker, in order.

    Args:
        origin: the picker, as it is called since its start; another start is another origin.
        seq: 1, 2, 3 ...
        key_id: identifies the key of its hashes: hashes of the same key can be compared.
        sent_at_s: the origin's wall clock, for showing how old records are; nothing depends on it.
        oldest_open: entries before it have ended, even if their end was not received.
        full: loads that are not in it are zero.
        loads: loads by the endpoints' addresses.
        records: the records.
        bad: number of invalid loads and records.
    """

    origin: str
    seq: int
    key_id: str
    sent_at_s: float
    oldest_open: int
    full: bool
    loads: dict[str, Load]
    records: list[Record]
    bad: int = 0


def write_hashes(hashes: array[int]) -> str:
    """Base64 of little-endian 64-bit integers."""
    if sys.byteorder != "little":
        hashes = array("Q", hashes)
        hashes.byteswap()
    return binascii.b2a_base64(hashes.tobytes(), newline=False).decode()


def read_hashes(text: object) -> array[int]:
    """Reads hashes written by `write_hashes`.

    Raises:
        ValueError: it is no such text, or longer than any prompt's.
    """
    if not isinstance(text, str) or len(text) > MAX_BLOCKS * 11:
        raise ValueError
    hashes = array("Q")
    hashes.frombytes(binascii.a2b_base64(text, strict_mode=True))
    if sys.byteorder != "little":
        hashes.byteswap()
    return hashes


def write_batch(namespace: str, batch: Batch) -> bytes:
    """The batch as it is sent."""
    return orjson.dumps(
        {
            "v": SCHEMA,
            "ns": namespace,
            "from": batch.origin,
            "seq": batch.seq,
            "key": batch.key_id,
            "t": round(batch.sent_at_s, 4),
            "open": batch.oldest_open,
            "full": batch.full,
            "at": list(batch.loads),
            "load": list(chain.from_iterable(batch.loads.values())),
            "d": [_written(record) for record in batch.records],
        }
    )


def read_batch(namespace: str, data: bytes) -> Batch:
    """A batch that was received.

    Raises:
        Unreadable: it is too long, no batch, of another schema or of another namespace.
    """
    if len(data) > MAX_BATCH_BYTES:
        raise Unreadable("too-long")
    try:
        told = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise Unreadable("no-batch") from None
    if not isinstance(told, dict):
        raise Unreadable("no-batch")
    if told.get("v") != SCHEMA or type(told["v"]) is not int:
        raise Unreadable("schema")
    if told.get("ns") != namespace:
        raise Unreadable("namespace")
    try:
        records = told["d"]
        if not isinstance(records, list) or len(records) > MAX_RECORDS:
            raise Unreadable("no-batch")
        loads, bad = _loads(told["at"], told["load"])
        batch = Batch(
            _text(told["from"]),
            _count(told["seq"]),
            _text(told["key"]),
            _number(told["t"]),
            _count(told["open"]),
            told["full"] is True,
            loads,
            [],
        )
    except (KeyError, ValueError, TypeError):
        raise Unreadable("no-batch") from None
    for record in records:
        try:
            batch.records.append(_READERS[record[0]](*record[1:]))
        except (ValueError, TypeError, KeyError, IndexError):
            bad += 1
    return batch._replace(bad=bad)


def _written(record: Record) -> tuple[Any, ...]:
    match record:
        case Entered():
            return ("p", *record[:-1], write_hashes(record.tail))
        case Ended():
            return ("s", *record) if record.ok else ("r", record.entry)
        case Heard(address, word):
            return ("h", address, word.what, str(word.kind), round(word.amount, 3))
        case Learned(address, sample):
            return ("e", address, sample.first, *map(_six, (*sample.features, *sample[2:])))
        case Reported(outcome):
            known = outcome[2:] if outcome.reporter else outcome[2:-1]
            return ("o", outcome.model, *outcome.features, *known)
        case _:
            return (_TAGS[type(record)], *record)


def _six(number: float) -> float:
    """Six significant digits: measurements have fewer."""
    return float(f"{number:.6g}")


_TAGS = {Cleared: "c", StoredAt: "a", Judged: "j", Weights: "w", Hello: "?", Leaving: "x"}


def _loads(addresses: Any, numbers: Any) -> tuple[dict[str, Load], int]:
    """Loads by address, and how many made no sense."""
    if type(addresses) is not list or type(numbers) is not list:
        raise ValueError
    if len(addresses) > MAX_RECORDS or len(numbers) != _NUMBERS * len(addresses):
        raise ValueError
    places = range(0, len(numbers), _NUMBERS)
    each = list(zip(addresses, (numbers[at : at + _NUMBERS] for at in places), strict=True))
    good = (
        each
        if _are_loads(addresses, numbers)
        else [one for one in each if _are_loads([one[0]], one[1])]
    )
    return {address: Load._make(load) for address, load in good}, len(each) - len(good)


def _are_loads(addresses: list[Any], numbers: list[Any]) -> bool:
    """Whether they are texts, and numbers not below zero. JSON has no NaN."""
    return not addresses or (
        set(map(type, addresses)) == {str}
        and max(map(len, addresses)) <= MAX_TEXT_CHARS
        and set(map(type, numbers)) <= {int, float}
        and min(numbers) >= 0.0
        and max(numbers) < _LARGEST
    )


def _entered(
    entry: Any, address: Any, total_bytes: Any, known: Any, anchor: Any, tail: Any
) -> Entered:
    return Entered(
        _count(entry),
        _text(address),
        _count(total_bytes),
        _count(known),
        _count(anchor),
        read_hashes(tail),
    )


def _ended(entry: Any, ok: Any, share: Any) -> Ended:
    return Ended(_count(entry), ok is True, None if share is None else _share(share))


def _heard(address: Any, what: Any, kind: Any, amount: Any) -> Heard:
    return Heard(_text(address), Word(_text(what), Kind(kind), _positive(amount)))


def _learned(address: Any, first: Any, *numbers: Any) -> Learned:
    known = [_number(each) for each in numbers]
    if len(known) != (8 if first is True else 4):
        raise ValueError
    even_s, took_s, weight = known[-3:]
    if not (even_s > 0 and took_s > 0 and weight > 0):
        raise ValueError
    return Learned(_text(address), Sample(first is True, tuple(known[:-3]), even_s, took_s, weight))


def _reported(
    model: Any,
    language: Any,
    bucket: Any,
    task: Any,
    correct: Any,
    weight: Any,
    prior: Any,
    offset: Any,
    tenant: Any,
    reporter: Any = "",
) -> Reported:
    features = Features(_text(language), _count(bucket), _text(task))
    weight, offset = _number(weight), _number(offset)
    if type(correct) is not bool or not (0.0 < weight <= 1.0 and -1.0 <= offset <= 1.0):
        raise ValueError
    prior = None if prior is None else _share(prior)
    taken = Taken(
        model=_text(model),
        features=features,
        correct=correct,
        weight=weight,
        prior=prior,
        offset=offset,
        tenant=_text(tenant),
        reporter=_text(reporter),
    )
    return Reported(taken)


def _judged(decision_id: Any, correct: Any) -> Judged:
    if type(correct) is not bool:
        raise ValueError
    return Judged(_text(decision_id), correct)


def _weights(weights: Any, cost_s: Any) -> Weights:
    if not isinstance(weights, dict) or len(weights) > 64:
        raise ValueError
    return Weights({_text(k): _positive(v) for k, v in weights.items()}, _positive(cost_s))


_READERS: dict[str, Callable[..., Record]] = {
    "p": _entered,
    "s": _ended,
    "r": lambda entry: Ended(_count(entry), False, None),
    "c": lambda address: Cleared(_text(address)),
    "a": lambda name, address, session: StoredAt(_text(name), _text(address), _text(session)),
    "h": _heard,
    "e": _learned,
    "o": _reported,
    "j": _judged,
    "w": _weights,
    "?": lambda: Hello(),
    "x": lambda: Leaving(),
}


def _text(value: Any) -> str:
    if type(value) is not str or len(value) > MAX_TEXT_CHARS:
        raise ValueError
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ValueError
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) < _LARGEST or not math.isfinite(value):
        raise ValueError
    return float(value)


def _positive(value: Any) -> float:
    number = _number(value)
    if number < 0.0:
        raise ValueError
    return number


def _share(value: Any) -> float:
    number = _number(value)
    if not 0.0 <= number <= 1.0:
        raise ValueError
    return number
