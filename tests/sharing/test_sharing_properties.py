"""For any events between pickers, counts end at zero, and beliefs agree."""

import numpy as np
import orjson
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from laar.core.decision import Completion
from laar.fleet.endpoints import COUNTED
from laar.sharing.batches import SCHEMA
from support.exploring import examples
from support.pickers import Log, Network, request, sharing_picker, specs

ADDRESSES = ("10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80")
PROMPTS = [
    ("abcdefgh" * 40)[: 300 - 10 * branch] + f"{branch}" * (64 * length)
    for branch in range(3)
    for length in (1, 4, 40)
]
pickers = st.integers(0, 2)


class Life(RuleBasedStateMachine):
    """Three pickers, their requests, and an unreliable network."""

    lossy = True

    @initialize()
    def begin(self):
        self.now = 1.0
        self.pickers = [sharing_picker(f"p{i}/1", ADDRESSES, seed=i + 1) for i in range(3)]
        self.net = (Network if self.lossy else Log)(self.pickers)
        self.open = {picker.origin: [] for picker in self.pickers}
        self.proven, self.sent = [], []

    def alive(self, number):
        return self.pickers[number % len(self.pickers)]

    @rule(number=pickers, prompt=st.sampled_from(PROMPTS))
    def decide(self, number, prompt):
        picker = self.alive(number)
        self.now += 0.001
        decision = picker.director.decide(request(prompt), self.now)
        self.open[picker.origin].append((decision, prompt))
        self.sent.append((decision.address, prompt))

    @rule(number=pickers, which=st.integers(0, 9))
    def first_byte(self, number, which):
        picker = self.alive(number)
        if flying := self.open[picker.origin]:
            picker.director.answering(flying[which % len(flying)][0], self.now)

    @rule(number=pickers, which=st.integers(0, 9), address=st.sampled_from(ADDRESSES))
    def move(self, number, which, address):
        picker = self.alive(number)
        if flying := self.open[picker.origin]:
            decision, prompt = flying[which % len(flying)]
            picker.director.served_by(decision, address, self.now)
            self.sent.append((decision.flight.address, prompt))

    @rule(number=pickers, which=st.integers(0, 9), status=st.sampled_from([200, 200, 503]))
    def end(self, number, which, status):
        picker = self.alive(number)
        if flying := self.open[picker.origin]:
            decision, prompt = flying.pop(which % len(flying))
            self.settle(picker, decision, prompt, status)

    def settle(self, picker, decision, prompt, status):
        took = self.now - decision.now
        end = Completion(status=status, cause="complete", latency_s=took, ttft_s=took)
        picker.director.settle(decision, end)
        if status == 200:
            self.proven.append((decision.flight.address, prompt))

    @rule(number=pickers, passed=st.floats(0.001, 0.3))
    def flush(self, number, passed):
        self.now += passed
        self.net.flush(self.alive(number), self.now)

    @rule(passed=st.floats(0.001, 0.3))
    def exchange(self, passed):
        self.now += passed
        self.net.exchange(self.now)

    @rule(which=st.integers(0, 5))
    def deliver_one(self, which):
        if not self.lossy:
            self.net.deliver_one(self.pickers[which % 3], self.now)
            return
        ((_, to), channel) = sorted(self.net.channels.items())[which]
        for picker in self.pickers:
            if picker.origin == to and channel:
                picker.take(channel.popleft(), self.now)

    @precondition(lambda self: self.lossy)
    @rule(which=st.integers(0, 5), what=st.sampled_from(["lose", "double", "swap"]))
    def disturb(self, which, what):
        channel = sorted(self.net.channels.items())[which][1]
        if not channel:
            return
        if what == "lose":
            channel.popleft()
        elif what == "double":
            channel.append(channel[0])
        else:
            channel.rotate(1)

    @precondition(lambda self: self.lossy and len(self.pickers) > 2)
    @rule(number=pickers)
    def kill(self, number):
        """Kill a picker: its requests are still answered, but no picker counts them any longer."""
        picker = self.pickers.pop(number % len(self.pickers))
        self.open.pop(picker.origin)

    @precondition(lambda self: self.lossy)
    @rule(number=pickers, some=st.sets(st.sampled_from(ADDRESSES), min_size=1))
    def endpoints(self, number, some):
        self.alive(number).director.table.replace("t", specs(*sorted(some)))

    @precondition(lambda self: self.lossy)
    @rule(
        number=pickers,
        change=st.sampled_from(
            [
                {"namespace": "other"},
                {"schema": SCHEMA - 1},
                {"schema": True},
                {"seq": -1},
                {"records": 7},
            ]
        ),
    )
    def foreign_batch(self, number, change):
        """Receive a batch of another deployment or version, which changes nothing."""
        picker = self.alive(number)
        before = counted(picker)
        batch = {"schema": SCHEMA, "namespace": "laar", "origin": "x/1", "seq": 1, "key_id": ""}
        batch |= {"sent_at_s": 0, "oldest_open": 0, "full": True, "records": []}
        batch |= {"loads": {ADDRESSES[0]: [9.0] * 9}} | change
        picker.take(orjson.dumps(batch), self.now)
        assert counted(picker) == before

    @invariant()
    def counts_match(self):
        for picker in getattr(self, "pickers", ()):
            table = picker.director.table
            own = table.own(np.arange(table.capacity))[0].sum()
            assert own == len(self.open[picker.origin])
            assert (table.elsewhere >= 0.0).all()
            assert table.in_flight.sum() == own + table.elsewhere[0].sum()

    def teardown(self):
        if not hasattr(self, "pickers"):
            return
        for picker in self.pickers:
            for decision, prompt in self.open[picker.origin]:
                self.settle(picker, decision, prompt, 200)
            self.open[picker.origin] = []
        steps = 40 if self.lossy else 4
        for _ in range(steps):
            self.now += 0.3
            self.net.exchange(self.now)
        for picker in self.pickers:
            assert not any(counted(picker)), "a request is still reserved"
            assert not picker.director.engines.traffic.ahead_s.any()
            assert not any(peer.entries and peer.entries._open for peer in picker.peers.known())
        self.agree()

    def agree(self):
        """Assert that beliefs are equal with all records, and not unfounded if some are lost."""
        for address in ADDRESSES:
            for prompt in PROMPTS:
                held = [self.held(picker, address, prompt) for picker in self.pickers]
                if self.lossy:
                    assert max(held) <= longest(self.sent, address, prompt)
                else:
                    assert held == [longest(self.proven, address, prompt)] * len(held)

    def held(self, picker, address, prompt):
        table, prefixes = picker.director.table, picker.director.prefixes
        slot = table.slot(address)
        chain = prefixes.chain(request(prompt))
        return round(float(prefixes.match(chain)[0][slot]) * len(prompt)) // 64


class Orderly(Life):
    """The same with a lossless stream, which each picker reads at its own pace."""

    lossy = False


def longest(sent, address, prompt):
    """Return the longest prefix, in blocks, that a prompt shares with any sent to an address."""
    return max(
        (common(prompt, other) // 64 for where, other in sent if where == address), default=0
    )


def common(one, other):
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def counted(picker):
    table = picker.director.table
    return [float(getattr(table, name).sum()) for name in COUNTED]


TestLife = pytest.mark.long(Life.TestCase)
TestLife.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestOrderly = pytest.mark.long(Orderly.TestCase)
TestOrderly.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)
