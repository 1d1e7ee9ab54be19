"""What drawn traffic teaches a picker is known to one that is restored from its snapshot.

Nothing lists what is learned: numbers of decisions are compared, and tables found by their changes.
"""

from __future__ import annotations

import inspect
import math
import random
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from laar.accuracy.assessor import CapabilityAssessor
from laar.accuracy.online import OnlineOutcomes
from laar.core.decision import Completion
from laar.errors import RequestError
from laar.explain.decision_record import DecisionRecord
from laar.explain.record import shown
from laar.fleet.membership import EndpointSpec
from laar.health import Health, HealthSettings
from laar.plugins.stored import StoredObjects
from laar.prefix.beliefs import PrefixBeliefs
from laar.sharing.sharing import Sharing
from laar.sharing.snapshot import read_snapshot, restore, snapshot
from support.directors import director_of
from support.pickers import KEY, SETTINGS
from support.requests import request_of

ADDRESSES = [f"10.0.0.{number}:80" for number in range(6)]
PAUSE_S = 600.0  # until what counts for a minute is forgotten
SEEDS = 6

NOT_SAVED = {
    "shown by the next answers": "laar.health FoundShares._reports _Cache.missed "
    "_Cache.missed_stamp",
    "in flight, in the last minutes, or read every second": "laar.speeds.batches "
    "laar.speeds.traffic laar.fleet.endpoints laar.plugins.trying laar.prefix.demand "
    "laar.sharing Evictions._waiting Evictions._age_of Evictions._next_at Paces._learned "
    "PrefixIndex.now Retrying._sent laar.plugins.shares",
    "kept to a second": "_Use.at PrefixIndex.oldest_at",
    "worked out when needed": "laar.core.candidates laar.prefix.blocks Swaps._version Modes._now",
    "relative to this process's start": "FittedLine.level FittedLine._recent Paces._levels "
    "PrefixIndex._stamp _Cache.by_age _Cache.changes _Use.claim _Use.stamp _Use.witness",
    "at most seven samples, and a prior that samples outweigh": "FittedLine._pending "
    "FittedLine._expected",
    "the fleet's mean, which fewer answers change": "Density._all",
    "when the reports faded last, and whose they were": "Cell.at_s Cell.levels",
    "evicted ends of prompts": "_Use.whole _Segment.hashes _Segment.holders Segments.by_first",
    "a metric": "PrefixIndex.forgotten_blocks",
}
"""Modules, packages and attributes that a restored picker has not, or differently, by reason."""


def specs(addresses):
    names = [("x", "y")[: number % 3] for number in range(6)]
    return [
        EndpointSpec(address=address, models=(model, *names), adapters=frozenset(names))
        for address, model, names in zip(addresses, "ababab", names, strict=False)
    ]


def picker(now_s=0.0, **given):
    online = OnlineOutcomes()
    director = director_of(
        *specs(ADDRESSES),
        prefixes=PrefixBeliefs(key=KEY, max_bytes=8 << 20),
        assessor=CapabilityAssessor(online.capability, online),
        aliases={"auto": ("a", "b")},
        **given,
    )
    return Sharing(
        director, SETTINGS, origin="p/1", key=KEY, wall_clock=lambda: now_s, online=online
    )


class Fleet:
    """Engines and clients with drawn habits."""

    def __init__(self, seed):
        self.rng = rng = random.Random(seed)
        self.bytes_per_token = {model: rng.uniform(2.0, 6.0) for model in "ab"}
        self.speed = {a: rng.choice((0.3, 1.0, 1.0, 3.0)) for a in ADDRESSES}
        self.tokens = {a: rng.choice((4, 200, 200)) for a in ADDRESSES}
        self.caches = {a: rng.random() < 0.7 for a in ADDRESSES}
        self.partial = {"a", "b"} if seed % 3 == 1 else set()  # counts omit what is cached
        self.room_bytes = {a: rng.choice((20_000, 4 << 20)) for a in ADDRESSES}
        self.texts = ["words "]

    def request(self, number):
        rng = self.rng
        told = f"{number} {rng.choice(('words', '3,14;', 'Ärger'))} " * rng.randint(5, 500)
        self.texts.append(rng.choice(("", rng.choice(self.texts))) + told)
        tenant = rng.choice(("", "asks again", "gives up"))
        tried = rng.choice(("", "", "a", "b")) if tenant == "asks again" else ""
        return request_of(
            self.texts[-1],
            id=str(number),
            model=rng.choice(("auto", "a", "b", "x", "y")),
            tenant=tenant,
            tried=tried,
            first_token_seen=True,
            digest=len(self.texts) % 60,
        )

    def serve(self, pickers, now, count):
        """Let pickers send requests to where the first of them decides; return the last time."""
        flights, rng = [], self.rng
        for number in range(count):
            now += rng.uniform(0.0, 3.0)
            request = self.request(number)
            first = pickers[0].director.decide(request, now)
            request = replace(request, subset=frozenset((first.address,)))
            rest = [sharing.director.decide(request, now) for sharing in pickers[1:]]
            flights.append((first, *rest))
            while flights and rng.random() < 0.5:
                self.end(pickers, flights.pop(rng.randrange(len(flights))), now)
        for decisions in flights:
            self.end(pickers, decisions, now)
        return now

    def end(self, pickers, decisions, now):
        rng, first, correct = self.rng, decisions[0], self.rng.choice((None, None, True, False))
        address, model = first.address, first.model
        tokens = math.ceil(first.request.chars / self.bytes_per_token[model])
        cached = int(first.believed_share * tokens) if self.caches[address] else 0
        ttft_s = self.speed[address] * (0.05 + 1e-4 * (tokens - cached)) * rng.uniform(0.9, 1.1)
        answer = math.ceil(self.tokens[address] * rng.uniform(0.5, 1.5))
        counted = max(tokens - cached, 1) if model in self.partial else tokens
        counts = {"prompt_tokens": counted, "cached_tokens": cached, "completion_tokens": answer}
        times = {"ttft_s": ttft_s, "latency_s": ttft_s + 0.01 * self.speed[address] * answer}
        found = rng.random()
        for sharing, decision in zip(pickers, decisions, strict=True):
            beliefs, slot = sharing.prefixes.beliefs, decision.slot
            beliefs.index.set_capacity(slot, self.room_bytes[address])
            beliefs.shown.answered(slot, 1.0, found, None)  # as for engines with KV events
            sharing.director.answering(decision, decision.now + ttft_s)
            sharing.director.plugins.get(StoredObjects).keeps(decision, f"resp_{first.id}")
            end = Completion(status=200, cause="complete", **times, **counts)
            sharing.director.settle(decision, end)
            if correct is not None:
                tried, cell = first.tried[:-1], decision.view.cell
                sharing.online.observe(model, cell, correct, now, tried=tried)


class Leaving(Fleet):
    """Endpoints die, leave and return while requests are in flight."""

    def end(self, pickers, decisions, now):
        director = pickers[0].director
        director.table.replace("t", self.rng.sample(specs(ADDRESSES), 3))
        director.plugins.save()
        director.health.died(decisions[0].slot, now)
        super().end(pickers, decisions, now)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_plugin_fails_because_an_endpoint_has_left(seed):
    fleet, sharing = Leaving(seed), picker(health=Health(HealthSettings(), rng=random.Random(seed)))
    for number in range(40):
        with suppress(RequestError):  # no endpoint serves it now, or it kills
            fleet.serve([sharing], 100.0 * (1 + number), 20)
    assert not sharing.director.degraded


def restarted(sharing, now):
    """Return a new picker with the snapshot of this one, as of its latest answers."""
    engines = sharing.director.engines
    engines.paces.work_out_all(engines.traffic.arrived_at)
    engines.kept = None
    told = read_snapshot(snapshot(sharing, now, with_key=True)(), "laar")
    fresh = picker()
    restore(fresh, told, now)
    return fresh


def explained(sharing, request, now):
    """Return all numbers that `/explain` shows of a request, by candidate.

    Scores are left out: they follow from the costs, relative to the least.
    """
    decision = sharing.director.choose(request, now)
    specs = dict(sharing.director.table.by_slot)
    told = shown(DecisionRecord(decision=decision, time_s=now, specs=specs, readings=None))
    rows = [{"endpoint": "", "wrong_s": told.get("wrong_answer_s", 0.0)}, *told["candidates"]]
    return {
        (row["endpoint"], term): number
        for row in rows
        for term, number in row.items()
        if isinstance(number, float) and term != "score"
    }


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_restarted_picker_decides_by_the_same_numbers(seed):
    fleet, before = Fleet(seed), picker()
    now = fleet.serve([before], 100.0, 200) + PAUSE_S
    after = restarted(before, now)
    for number in range(40):
        request = fleet.request(f"later {number}")
        numbers = explained(before, request, now)
        assert explained(after, request, now) == pytest.approx(numbers, rel=1e-3, abs=1e-4)
    assert before.director.plugins.get(StoredObjects).latest(9999) == after.director.plugins.get(
        StoredObjects
    ).latest(9999)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_restarted_picker_learns_on_as_if_it_had_not_restarted(seed):
    fleet, before = Fleet(seed), picker()
    before.director.table.replace("t", specs(ADDRESSES[:-1]))  # the last one joins later
    now = fleet.serve([before], 100.0, 100)
    after = restarted(before, now)
    for cache in before.prefixes.beliefs.index._caches:
        cache.missed = None  # not saved: two later misses show the same
    for sharing in (before, after):
        sharing.director.table.replace("t", specs(ADDRESSES))
    now = fleet.serve([before, after], now, 100) + PAUSE_S
    for number in range(20):
        request = fleet.request(f"later {number}")
        numbers = explained(before, request, now)
        # An endpoint may have answered twice: the few samples that are not saved matter there.
        assert explained(after, request, now) == pytest.approx(numbers, rel=0.5, abs=1e-3)


def plain(value):
    """Return data as text; objects of laar are compared on their own."""
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, dict):
        return str(sorted((plain(key), plain(each)) for key, each in value.items()))
    if isinstance(value, list | tuple | set | frozenset):
        told = [plain(each) for each in value]
        return str(told if isinstance(value, list | tuple) else sorted(told))
    return repr(value) if isinstance(value, str | int | bytes) else type(value).__name__


def tables(sharing):
    """Return the values of all attributes of a picker's objects, by module, class and name.

    The last part of a key is the attribute that holds the object: there may be two of a class.
    """
    found, seen, todo = defaultdict(list), set(), [(sharing, "")]
    while todo:
        thing, held_as = todo.pop()
        if id(thing) in seen or inspect.isroutine(thing) or inspect.isclass(thing):
            continue
        seen.add(id(thing))
        if isinstance(thing, dict | list | tuple):
            items = thing.values() if isinstance(thing, dict) else thing
            todo += [(item, held_as) for item in items]
        elif (of := type(thing)).__module__.startswith("laar."):
            slots = [name for base in of.__mro__ for name in base.__dict__.get("__slots__", ())]
            for name in {*slots, *getattr(thing, "__dict__", ())}:
                value = getattr(thing, name, None)
                todo.append((value, name))
                found[of.__module__, f"{of.__name__}.{name}", held_as].append(plain(value))
    return {of: sorted(values) for of, values in found.items()}


def test_every_table_that_traffic_changes_is_saved_or_listed():
    names = {name for listed in NOT_SAVED.values() for name in listed.split()}
    needed, new = set(), tables(picker())
    for seed in range(SEEDS):
        before = picker()
        now = Fleet(seed).serve([before], 100.0, 200)
        after, changed = tables(restarted(before, now)), tables(before)
        lost = {
            (module, name)
            for (module, name, held), values in changed.items()
            if values not in (new.get((module, name, held)), after.get((module, name, held)))
        }
        reasons = {
            of: {name for name in names if name == of[1] or f"{of[0]}.".startswith(f"{name}.")}
            for of in lost
        }
        assert [of for of in sorted(lost) if not reasons[of]] == []
        needed |= set().union(*reasons.values())
    assert names - needed == set()  # no name is listed in vain
