"""Plan a batch known beforehand: order its documents, schedule it, and predict its hits.

This is the paper's setting, in which it reports hit rates of 34 to 60 %. It suits batch files that
wait for a nightly run. `plan` works on document ids; `plan_lines` on request bodies, one per line,
either bare or as the ``body`` of a batch-file line. Only one string of a line is replaced; the rest
stays byte-identical.

Requests whose texts differ before the documents share no cached prefix, so each group with a common
beginning is clustered separately, in parts of `cluster.MAX_CONTEXTS`. Hits are predicted for one
endpoint and documents of equal size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath

import orjson
import xxhash

from laar.context.blocks import Block, Refused
from laar.context.bodies import Text, prompt_texts, said_before
from laar.context.formats import fixed, scan
from laar.context.formats.jsonspans import splice
from laar.context.recurrence import Recurrences
from laar.context.rewrite import Change, as_received, is_too_small, rewrite
from laar.context.settings import ContextSettings, Reason
from laar_lab.advice import api_of
from laar_lab.offline.cache import DocCache
from laar_lab.offline.cluster import MAX_CONTEXTS, build
from laar_lab.offline.schedule import schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A request of a batch: its index in the input, and its documents in the best order."""

    index: int
    docs: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """A batch in sending order, and its hit rates as received and as planned."""

    requests: tuple[Planned, ...]
    hit_received: float
    hit_planned: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """The outcome of planning a batch of bodies.

    Args:
        requests: number of lines.
        planned: number of lines with documents that could be ordered.
        reordered: number of lines whose documents were moved.
        documents: number of documents in the planned lines.
        hit_received: expected share of documents found cached if sent as received.
        hit_planned: expected share of documents found cached in the planned order.
        capacity_docs: capacity of the cache for which hits are estimated; None for no limit.
        left: number of unplanned lines, by reason.
    """

    requests: int
    planned: int
    reordered: int
    documents: int
    hit_received: float
    hit_planned: float
    capacity_docs: int | None
    left: dict[str, int]


def plan(contexts: Sequence[Sequence[int]], *, capacity_docs: int | None = None) -> BatchPlan:
    """Order and schedule contexts of distinct documents for a cache of `capacity_docs`."""
    planned: list[Planned] = []
    for start in range(0, len(contexts), MAX_CONTEXTS):
        built = build(contexts[start : start + MAX_CONTEXTS]).contexts
        planned += (
            Planned(index=start + i, docs=built[i].docs)
            for i in schedule([ordered.path for ordered in built])
        )
    return BatchPlan(
        requests=tuple(planned),
        hit_received=_hit_share(contexts, capacity_docs),
        hit_planned=_hit_share([request.docs for request in planned], capacity_docs),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A line whose documents can be ordered."""

    nested: bool
    text: Text
    blocks: list[Block]
    seed: int
    keys: tuple[int, ...]


def plan_lines(
    lines: Iterable[bytes],
    *,
    settings: ContextSettings | None = None,
    capacity_docs: int | None = None,
) -> tuple[list[bytes], PlanReport]:
    """Plan request bodies.

    Args:
        lines: one JSON body each, without the line end; empty lines are dropped. Lines that can't
            be planned are put at the end, unchanged.
        settings: formats, roles, `min_docs`, `annotate` and `relabel`; others are ignored.
        capacity_docs: capacity of the cache for which hits are estimated; None for no limit.

    Returns:
        The lines in sending order, and the report.
    """
    settings = settings or ContextSettings()
    given = [line for line in lines if line.strip()]
    learned = Recurrences()
    for line in given:
        _learn(line, learned)
    left: Counter[str] = Counter()
    groups: dict[int, list[int]] = {}
    read: dict[int, _Line] = {}
    for i, line in enumerate(given):
        found = _read(line, settings, learned)
        if isinstance(found, Reason):
            left[found.value] += 1
        else:
            read[i] = found
            groups.setdefault(found.seed, []).append(i)
    out: list[bytes] = []
    sent: list[tuple[int, ...]] = []
    reordered = 0
    for group in sorted(groups.values(), key=lambda group: (-len(group), group[0])):
        for request in plan([read[i].keys for i in group]).requests:
            i = group[request.index]
            made = _made(given[i], read[i], request.docs, settings)
            reordered += made != given[i]
            out.append(made)
            sent.append(_rooted(read[i].seed, read[i].keys if made == given[i] else request.docs))
    out += (line for i, line in enumerate(given) if i not in read)
    return out, PlanReport(
        requests=len(given),
        planned=len(read),
        reordered=reordered,
        documents=sum(len(line.keys) for line in read.values()),
        hit_received=_hit_share([_rooted(x.seed, x.keys) for x in read.values()], capacity_docs),
        hit_planned=_hit_share(sent, capacity_docs),
        capacity_docs=capacity_docs,
        left=dict(left),
    )


def plan_file(
    path_in: FilePath,
    path_out: FilePath,
    *,
    settings: ContextSettings | None = None,
    capacity_docs: int | None = None,
) -> PlanReport:
    """Apply `plan_lines` to a file, in memory, and write the result to another.

    Raises:
        OSError: a file can't be read or written.
    """
    with path_in.open("rb") as source:
        lines = (line.rstrip(b"\r\n") for line in source)
        out, report = plan_lines(lines, settings=settings, capacity_docs=capacity_docs)
    path_out.write_bytes(b"".join(line + b"\n" for line in out))
    return report


def _learn(line: bytes, learned: Recurrences) -> None:
    """Learn all texts of a line, in order to recognize documents without a known format."""
    try:
        value = orjson.loads(line)
        body = value["body"] if isinstance(value.get("body"), dict) else value
        api = api_of(body)
        texts = [] if api is None else prompt_texts(body, api)
    except (orjson.JSONDecodeError, AttributeError, Refused):
        return
    for text in texts:
        _, seen = learned.find(0, text.value)
        if seen is not None:
            learned.learn(seen)


def _read(line: bytes, settings: ContextSettings, learned: Recurrences) -> _Line | Reason:
    """Return the first block of documents in a line's body, or the reason that there is none."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return Reason.INVALID_JSON
    if not isinstance(value, dict):
        return Reason.NO_DOCUMENTS
    nested = isinstance(value.get("body"), dict)
    body = value["body"] if nested else value
    api = api_of(body)
    if api is None:
        return Reason.UNSUPPORTED_API
    try:
        texts = prompt_texts(body, api)
        for text in texts:
            if text.role not in settings.roles:
                continue
            blocks = scan(text.value, settings, by_tool=text.role == "tool")
            if not blocks:
                learnt, _ = learned.find(0, text.value)
                if learnt is None or len(learnt.items) < settings.min_docs:
                    continue
                blocks = [fixed(learnt, settings)]
            block = blocks[0]
            if block.fixed:
                return Reason.POSITIONAL_LABELS
            spans = [text.value[item.start : item.end].encode() for item in block.items]
            keys = tuple(map(xxhash.xxh3_64_intdigest, spans))
            if not text.fresh:
                return Reason.UNCHANGED
            if len(set(keys)) < len(keys):
                return Reason.REPEATED
            if is_too_small(block, sum(map(len, spans)), settings):
                return Reason.TOO_SMALL
            before = orjson.dumps([body.get("model"), text.value[: block.items[0].start]])
            seed = xxhash.xxh3_64_intdigest(before + said_before(body, text.path))
            return _Line(nested=nested, text=text, blocks=blocks, seed=seed, keys=keys)
    except Refused as refused:
        return refused.reason
    except orjson.JSONEncodeError:  # nested too deeply for orjson
        return Reason.TOO_COMPLEX
    return Reason.NO_DOCUMENTS


def _made(line: bytes, read: _Line, docs: Sequence[int], settings: ContextSettings) -> bytes:
    """Return the line with its documents in the given order; unchanged if that fails."""
    place = {key: i for i, key in enumerate(read.keys)}
    first, *others = read.blocks
    change = Change(first, tuple(place[doc] for doc in docs))
    if not change.moved:
        return line
    text = read.text.value
    changes = [change, *map(as_received, others)]
    path = ("body", *read.text.path) if read.nested else read.text.path
    try:
        bare, annotated = rewrite(text, changes)
        return splice(line, {path: annotated if settings.annotate else bare})
    except Refused:
        return line


def _rooted(seed: int, docs: Sequence[int]) -> tuple[int, ...]:
    """Return document ids that only requests with the same beginning share."""
    return (hash((seed, docs[0])), *docs[1:])


def _hit_share(contexts: Sequence[Sequence[int]], capacity_docs: int | None) -> float:
    cache = DocCache(math.inf if capacity_docs is None else capacity_docs)
    hits = sum(cache.put(docs) for docs in contexts)
    return hits / max(1, sum(map(len, contexts)))
