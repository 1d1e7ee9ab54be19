"""A fleet with failing endpoints in virtual time, behind a real director.

Each endpoint answers by a behavior, a function of the request and the time. The director gets
the reports of the stream machine in the native shape: the status when it comes, and the body only
if it requested it. There are no retries: a failed request fails for its client.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from laar.core.cost import CostWeights
from laar.core.decision import Completion, DirectorSettings
from laar.core.director import Director
from laar.fleet.endpoints import EndpointTable
from laar.fleet.membership import EndpointSpec
from laar.health import GOOD, Health, HealthSettings, Kind, Reply, judge
from laar.plugins import own
from laar.policies import build_policies
from laar.prefix.beliefs import PrefixBeliefs
from support.requests import request_of

ERROR_EVENT = b'data: {"error": {"message": "EngineDeadError", "code": 500}}'
PATIENCE_S = 15.0


@dataclass
class Job:
    """A client's request."""

    number: int
    client: int
    at: float
    tokens: int
    stream: bool
    decision: object = None
    seconds: float = 0.0


@dataclass
class Answer:
    """An endpoint's answer: a status after `head_s`, an end after `seconds`; None is silence."""

    status: int | None = 200
    head_s: float = 0.001
    seconds: float | None = None
    retry_after_s: float | None = None
    text: bytes = b""
    event: bytes = b""


@dataclass
class Seen:
    """The results of a run."""

    failed: list[float] = field(default_factory=list)
    latencies: list[tuple[float, float]] = field(default_factory=list)
    asked: Counter = field(default_factory=Counter)
    reasons: Counter = field(default_factory=Counter)
    statuses: Counter = field(default_factory=Counter)
    took_s: float = 0.0

    @property
    def total(self):
        return len(self.failed) + len(self.latencies)

    def share(self):
        return len(self.failed) / self.total

    def p95(self):
        return float(np.percentile([s for _, s in self.latencies] or [0.0], 95))


class VirtualFleet:
    """A closed loop of clients over endpoints that serve one model.

    Args:
        endpoints: number of endpoints.
        behave: endpoint index -> function (fleet, job, now, ordinary) -> Answer; others are
            healthy.
        clients: number of clients, each with one request at a time.
        think_s: pause between a client's requests.
    """

    def __init__(
        self,
        endpoints=5,
        behave=None,
        *,
        clients=24,
        seed=1,
        policy="laar",
        settings=None,
        streams=0.5,
        tokens=None,
        service_s=0.4,
        spread=0.4,
        think_s=0.0,
        prefixes=False,
        health=True,
        probes=False,
    ):
        self.rng = random.Random(seed)
        self.table = EndpointTable()
        self.addresses = [f"10.0.0.{n + 1}:80" for n in range(endpoints)]
        self.join(self.addresses)
        self.health = Health(settings or HealthSettings(), rng=random.Random(seed + 1))
        self.director = Director(
            self.table,
            build_policies(CostWeights()),
            DirectorSettings(policy=policy),
            plugins=own(),
            rng=random.Random(seed + 2),
            prefixes=PrefixBeliefs(key=b"k" * 16, max_bytes=1 << 22) if prefixes else None,
            health=self.health if health else None,
        )
        self.behave = behave or {}
        self.clients = clients
        self.streams = streams
        self.tokens = tokens or (lambda rng: int(rng.lognormvariate(6.0, 1.0)) + 10)
        self.service_s = service_s
        self.spread = spread
        self.think_s = think_s
        self.running = Counter()
        self.seen = Seen()
        self._events = []
        self._probes = self.health.questions.are_asked = probes
        self._order = count()
        self.now = 0.0
        self.text = lambda _job: None
        self.probes = 0

    def join(self, addresses):
        self.table.replace("test", [EndpointSpec(address=a, models=("m",)) for a in addresses])

    def _at(self, when, what, *args):
        heapq.heappush(self._events, (when, next(self._order), what, args))

    def call(self, when, what):
        """Run a function without arguments repeatedly."""
        self._at(when, lambda _now: what())

    def run(self, requests, *, until=math.inf):
        """Send `requests` requests in total; return the results."""
        self.left = requests
        if self._probes:
            self._at(self.now, self._probe)
        for client in range(self.clients):
            self._at(self.now + 0.001 * client, self._next, client)
        while self._events and self._events[0][0] <= until:
            self.now, _, what, args = heapq.heappop(self._events)
            what(self.now, *args)
        self.seen.took_s = self.now
        return self.seen

    def _next(self, now, client):
        if self.left <= 0:
            return
        self.left -= 1
        job = Job(self.left, client, now, self.tokens(self.rng), self.rng.random() < self.streams)
        text = self.text(job) or f"{job.number} " + "x" * (4 * job.tokens)
        request = request_of(text, question="q", chars=4 * job.tokens, stream=job.stream)
        decision = job.decision = self.director.decide(request, now)
        index = self.addresses.index(decision.address)
        self.seen.asked[index] += 1
        self.seen.reasons[decision.reason] += 1
        self.running[index] += 1
        answer = self._answer(index, job, now)
        self.running[index] += 0
        read = decision.flight.read
        if answer.status is None:
            self._at(now + PATIENCE_S, self._end, job, index, None, "disconnect", False)
            return
        self._at(now + answer.head_s, self._reply, job, answer, read)
        if answer.seconds is None:
            cause = "complete"  # an answer that is not read looks complete however it ends
            self._at(now + PATIENCE_S, self._end, job, index, answer, cause, False)
        else:
            good = judge(Reply(status=answer.status)) is GOOD and not answer.event
            if good and read:
                first_s = min(answer.seconds, answer.head_s + 0.2 * answer.seconds)
                self._at(now + first_s, self._answering, job)
            self._at(now + answer.seconds, self._end, job, index, answer, "complete", good)

    def _probe(self, now):
        """Probe endpoints that are due, like the picker."""
        for slot in self.health.questions.due(now, 16):
            index = self.addresses.index(self.table.spec(slot).address)
            answer = self._answer(index, Job(-1, -1, now, 1, True), now)
            self.probes += 1
            if answer.seconds is None or answer.seconds > 10.0:
                self._at(now + 10.0, self._probed, slot, None)
                continue
            reply = Reply(
                status=answer.status,
                retry_after_s=answer.retry_after_s,
                text=answer.event or answer.text,
                event=bool(answer.event),
            )
            self._at(now + answer.seconds, self._probed, slot, reply)
        if self.left > 0:
            self._at(now + 0.25, self._probe)

    def _probed(self, now, slot, reply):
        self.health.questions.answered(slot, reply, now, None if reply else Kind.HANG)

    def _answer(self, index, job, now):
        busy = 1.0 + 0.1 * (self.running[index] - 1)
        seconds = self.rng.lognormvariate(math.log(self.service_s), self.spread)
        seconds = (seconds + 1e-4 * job.tokens) * busy
        ordinary = Answer(head_s=0.002 if job.stream else seconds, seconds=seconds)
        behavior = self.behave.get(index)
        return ordinary if behavior is None else behavior(self, job, now, ordinary)

    def _reply(self, now, job, answer, read):
        reply = Reply(status=answer.status, retry_after_s=answer.retry_after_s, text=answer.text)
        self.director.replied(job.decision, reply, now, read=read)
        if answer.event and read:
            told = Reply(status=200, text=answer.event, event=True)
            self.director.replied(job.decision, told, now, read=True)

    def _answering(self, now, job):
        self.director.replied(job.decision, Reply(status=200, found=GOOD), now, read=True)
        self.director.answering(job.decision, now)

    def _end(self, now, job, index, answer, cause, good):
        status = None if answer is None else answer.status
        self.running[index] -= 1
        self.seen.statuses[status] += 1
        error = bool(answer and answer.event and job.decision.flight.read)
        end = Completion(status=status, cause=cause, latency_s=now - job.at, error=error)
        self.director.settle(job.decision, end)
        if good:
            self.seen.latencies.append((job.at, now - job.at))
        else:
            self.seen.failed.append(job.at)
        self._at(now + self.think_s, self._next, job.client)


# -- behaviours ----------------------------------------------------------------------------------


def refuses(status, share=1.0, since=0.0, until=math.inf, **more):
    """Answer with a status immediately."""

    def behave(fleet, _job, now, ordinary):
        if since <= now < until and fleet.rng.random() < share:
            return Answer(status=status, head_s=0.001, seconds=0.002, **more)
        return ordinary

    return behave


def error_event(since=0.0):
    """Send an error as the first event of a 200."""
    return refuses(200, since=since, event=ERROR_EVENT)


def hangs(since=0.0, until=math.inf, *, head=False):
    """Send no bytes, or none after the headers."""

    def behave(_fleet, job, now, ordinary):
        if not since <= now < until:
            return ordinary
        return Answer(status=200 if head and job.stream else None, head_s=0.002)

    return behave


def slow(factor, since=0.0):
    """Take `factor` times longer."""

    def behave(_fleet, job, now, ordinary):
        if now < since:
            return ordinary
        seconds = factor * ordinary.seconds
        return Answer(head_s=0.002 if job.stream else seconds, seconds=seconds)

    return behave


def no_room(tokens):
    """Answer 500 to prompts above a length."""

    def behave(_fleet, job, _now, ordinary):
        if job.tokens > tokens:
            return Answer(status=500, head_s=0.001, seconds=0.002)
        return ordinary

    return behave
