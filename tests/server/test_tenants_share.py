"""What a greedy tenant does, of any kind, takes nothing of what another keeps within its share.

Nothing lists the tables: they are found by a walk through the picker's objects, and made small.
"""

import inspect
import random
from collections import deque

import pytest
from bench.bench_useless import SHAPES, Answer, Fleet, Question, sentence, useful

from laar.latest import Latest, Shared
from laar.plugins.stored import StoredObjects

pytestmark = pytest.mark.long

BY_NATURE = {
    "Member.said": "the latest answers that were read, whoever asked",
    "SeenAnswers._said": "the same",
}
"""Tables in which the latest push the others out, and why."""


def tables(root):
    """Return the tables of limited size below an object, by class and attribute."""
    found, seen, todo = {}, set(), deque([(root, "", "")])
    while todo:
        thing, owner, name = todo.popleft()
        if id(thing) in seen or inspect.isroutine(thing) or inspect.isclass(thing):
            continue
        seen.add(id(thing))
        if isinstance(thing, Latest):
            found.setdefault(f"{owner}.{name}", []).append(thing)
        if isinstance(thing, dict | list | tuple | set | frozenset | deque):
            items = list(thing.values()) if isinstance(thing, dict) else list(thing)
            todo += [(item, owner, name) for item in items]
        elif (of := type(thing)).__module__.startswith("laar."):
            slots = [each for base in of.__mro__ for each in base.__dict__.get("__slots__", ())]
            for each in {*slots, *getattr(thing, "__dict__", ())}:
                todo.append((getattr(thing, each, None), of.__name__, each))
    return found


class Tenants:
    """Requests of a modest tenant, then of a greedy one, with drawn habits."""

    def __init__(self, rng):
        self.rng = rng
        self.tenant = "modest"
        self.texts = []

    def __iter__(self):
        return self

    def __next__(self):
        rng, greedy = self.rng, self.tenant == "greedy"
        number = rng.getrandbits(40)
        text = f"{number} " + sentence(rng, 20, 600)
        if self.texts and rng.random() < 0.5:
            text = rng.choice(self.texts) + text
        self.texts = [*self.texts[-9:], text]
        own = {"user": f"user {number if greedy else number % 3}"}
        own["metadata"] = {rng.choice("abc"): f"{number if greedy else number % 3}"}
        if rng.random() < 0.4:
            own[f"odd_{number if greedy else number % 2}"] = True
        return Question(
            text=text,
            stream=rng.random() < 0.5,
            tenant=self.tenant,
            session=f"session {number if greedy else number % 4}" if rng.random() < 0.5 else "",
            options=tuple(own.items()),
        )


def owners(table):
    """Return the owners of a table's entries; none if it has no owners."""
    return set(table._keys) if isinstance(table, Shared) else set()


class Served(Fleet):
    """A fleet whose clients also store answers and report outcomes."""

    states = ()  # of its endpoints' health, at the end of each answer

    def _end(self, stream, *, reads):
        decision, picker, roll = stream.decision, self.picker, self.rng.random()
        super()._end(stream, reads=reads)
        self.states = [*self.states, *(picker.health.state(slot, self.now) for slot in range(3))]
        if roll < 0.4:
            picker.director.plugins.get(StoredObjects).keeps(decision, f"resp_{decision.id}")
        if roll > 0.3:
            picker.learning.reports.report(decision.id, roll > 0.5, self.now)


def fails(question, rng):
    """Answer as an engine that mostly refuses requests with odd members, or fails at them."""
    odd = any(name.startswith("odd") for name, _ in question.options)
    if odd and rng.random() < 0.7:
        return Answer(status=rng.choice((400, 413, 500, 503)), parts=(b"{}",))
    return useful(question, rng)


@pytest.mark.parametrize("seed", range(3))
def test_a_greedy_tenant_pushes_nothing_of_anothers_out(seed):
    rng = random.Random(seed)
    asked, shape = Tenants(rng), rng.choice(list(SHAPES.values()))
    fleet = Served([fails] * 3, shape=shape, seed=seed, asked=asked, rate_per_s=20.0)
    fleet.run(6.0)
    known = {
        name: [(table, list(table), owners(table)) for table in of]
        for name, of in tables(fleet.picker).items()
    }
    for table, keys, _ in (each for of in known.values() for each in of):
        table._most = max(2 * len(keys), 4)
    asked.tenant, fleet.states = "greedy", []
    fleet.run(15.0)
    full = {
        name: [each for each in of if len(each[0]) >= each[0]._most] for name, of in known.items()
    }
    assert sum(map(bool, full.values())) >= 6
    lost = {
        name
        for name, of in full.items()
        for table, keys, whose in of
        # With owners of their own, those that are gone were too old.
        if not all(key in table for key in keys) and not owners(table) - whose
    }
    assert lost <= BY_NATURE.keys()
    # A seventh of all requests fails by chance, which takes an endpoint out now and then.
    assert fleet.states.count("failing") < len(fleet.states) / 4
