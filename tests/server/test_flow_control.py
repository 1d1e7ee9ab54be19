"""Flow control completes every future, and keeps nothing for clients that have disconnected."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from laar.core.decision import Completion
from laar.errors import RequestError
from laar.fleet.endpoints import Reading
from laar.server.flow_control import FlowControl, Waiting
from laar.server.picker import Picker
from laar.settings import Settings
from laar.slices import SLICE_S
from support import eventually
from support.requests import request_of

END = Completion(status=200, cause="complete", latency_s=0.0)


class Door:
    """Flow control of one endpoint, which takes one request at a time."""

    def __init__(self, clock=None, **limits):
        self._clock = clock or asyncio.get_running_loop().time
        settings = Settings.model_validate(
            {
                "endpoints": [{"address": "127.0.0.1:9", "model": "m"}],
                "flow": {"enabled": True, "max_requests": 1, **limits},
            }
        )
        picker = Picker(settings, seed=2, clock=self._clock)
        picker.table.replace("t", settings.listed())
        self.director, self.admission = picker.director, picker.admission
        self.outcomes = []
        self.flow = FlowControl(
            self.admission, self.director, clock=self._clock, waited=self.outcomes.append
        )

    def ask(self, number, tenant="", session=""):
        asked = request_of(
            *([f"{number} " * 400] if session else []),
            id=str(number),
            chars=800 if session else 40,
            body_bytes=40,
            tenant=tenant,
            session=session,
        )
        return asyncio.create_task(self._answer(asked))

    async def _answer(self, asked):
        answer = self.flow.ask(asked, self._clock())
        return await answer.outcome() if isinstance(answer, Waiting) else (answer, 0.0)

    def end(self, decision):
        self.director.settle(decision, END)

    def left(self):
        queue, table = self.admission.queue, self.director.table
        return (
            queue.waiting,
            queue.held_bytes,
            len(self.admission.load.longs),
            table.in_flight.sum(),
        )


async def test_engines_can_compare_the_priorities_from_pickers_on_different_hosts():
    found = []
    for earlier_s in (0.0, 5e6):  # a monotonic clock counts from the host's start
        door = Door(clock=lambda earlier_s=earlier_s: time.monotonic() + earlier_s)
        specs = door.director.table.specs()
        door.director.table.replace("t", [replace(spec, priority_field=True) for spec in specs])
        decision, _ = await door.ask(1)
        found.append(decision.engine_priority)
    assert 0 <= found[1] - found[0] < 60_000


async def test_thousands_of_clients_that_disconnect_together_leave_nothing_behind():
    door = Door(clock=lambda: 0.0, min_hold_s=100.0, max_hold_s=100.0)
    first, _ = await door.ask(0)
    tasks = [door.ask(number) for number in range(1, 3_001)]
    await eventually(lambda: door.admission.queue.waiting == 3_000, what="all requests to wait")
    for task in tasks:
        task.cancel()
    door.end(first)  # at the same moment, so a decision is made for a client that has disconnected
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in done)
    assert door.left() == (0, 0, 0, 0)
    decision, waited_s = await door.ask("next")
    assert (decision.request.id, waited_s) == ("next", 0.0)


async def test_a_decision_for_a_client_that_has_just_disconnected_is_released():
    door = Door()
    first, _ = await door.ask(0)
    held = door.ask(1)
    await eventually(lambda: door.admission.queue.waiting == 1, what="the request to wait")
    door.end(first)
    while not door.outcomes:  # noqa: ASYNC110 (decided, and not yet awake: one turn of the loop)
        await asyncio.sleep(0)
    held.cancel()
    with pytest.raises(asyncio.CancelledError):
        await held
    assert door.left() == (0, 0, 0, 0)


async def test_no_answer_is_lost_if_a_client_disconnects_while_another_is_admitted():
    door = Door(max_waiting=3, min_hold_s=100.0, max_hold_s=100.0)
    first, _ = await door.ask(0)
    stays, dropped, leaves = (door.ask(number, "loud") for number in (1, 2, 3))
    await eventually(lambda: door.admission.queue.waiting == 3, what="all requests to wait")
    # Each displaces the newest request of the loudest tenant.
    quiet, calm = door.ask(4, "quiet"), door.ask(5, "calm")
    leaves.cancel()  # at the same moment
    with pytest.raises(asyncio.CancelledError):
        await leaves
    with pytest.raises(RequestError) as shed:
        await asyncio.wait_for(dropped, 5)
    assert (shed.value.status, shed.value.reason) == (429, "evicted-queue-pressure")
    door.end(first)
    for task in asyncio.as_completed((stays, quiet, calm), timeout=5):
        decision, _ = await task
        door.end(decision)
    assert door.left() == (0, 0, 0, 0)


async def test_a_constantly_changing_fleet_does_not_delay_requests_it_can_serve(monkeypatch):
    monkeypatch.setattr("laar.server.flow_control.ENVOY_LEARNS_S", 0.1)
    door = Door(min_hold_s=100.0, max_hold_s=100.0)

    async def change():
        while True:
            door.flow.endpoints_changed(known=True)
            await asyncio.sleep(0.01)

    for number in range(2):
        door.flow.endpoints_changed(known=False)
        held = door.ask(number)
        await eventually(lambda: door.admission.queue.waiting == 1, what="the request to wait")
        changing = asyncio.create_task(change())
        decision, _ = await asyncio.wait_for(held, 5)
        changing.cancel()
        door.end(decision)
    assert door.left() == (0, 0, 0, 0)


async def test_a_request_that_cannot_be_decided_blocks_no_other(monkeypatch):
    door = Door(min_hold_s=100.0, max_hold_s=100.0)
    first, _ = await door.ask(0)
    poison, other = door.ask("poison"), door.ask("other")
    await eventually(lambda: door.admission.queue.waiting == 2, what="both to wait")
    decide = door.director.decide

    def failing(request, *arguments):
        if request.id == "poison":
            raise ZeroDivisionError
        return decide(request, *arguments)

    monkeypatch.setattr(door.director, "decide", failing)
    door.end(first)
    with pytest.raises(ZeroDivisionError):  # the request is then sent without a decision
        await asyncio.wait_for(poison, 5)
    decision, _ = await asyncio.wait_for(other, 5)
    door.end(decision)
    assert door.left() == (0, 0, 0, 0)


async def test_a_wait_expires_without_any_event():
    door = Door(min_hold_s=0.05, max_hold_s=0.05)
    await door.ask(0)
    with pytest.raises(RequestError) as shed:
        await door.ask(1)
    assert (shed.value.status, shed.value.reason) == (503, "rejected-ttl-expired")
    assert door.outcomes[0].waited_s >= 0.05


async def test_a_drain_releases_all_waiting_requests_in_slices(monkeypatch):
    decided = 0
    door = Door(clock=lambda: decided * SLICE_S / 10)
    await door.ask(0)
    held = [door.ask(1 + at) for at in range(200)]
    await eventually(lambda: door.admission.queue.waiting == 200, what="all requests to wait")
    decide, in_turns = door.director.decide, []

    def counted(*arguments):
        nonlocal decided
        decided += 1
        return decide(*arguments)

    monkeypatch.setattr(door.director, "decide", counted)
    door.flow.drain()
    while door.admission.queue.waiting:
        before = decided
        door.flow._call()  # an event in each turn
        await asyncio.sleep(0)
        in_turns.append(decided - before)
    assert 0 < max(in_turns) <= 11
    for task in (*held, door.ask(201)):
        decision, _waited_s = await task
        assert decision.address == "127.0.0.1:9"


@pytest.mark.parametrize(
    ("kept", "end"),
    [
        (1, END),
        (1, replace(END, cause="disconnect", ttft_s=0.1)),
        (0, replace(END, cause="reset")),
        (0, Completion(status=None, cause="disconnect", latency_s=0.0)),
    ],
)
async def test_a_turn_cut_off_before_its_answer_begins_keeps_no_place(kept, end):
    """Otherwise a client could hold up the sessions of others without any work by an engine."""
    door = Door()
    reading = Reading(waiting=0, running=0, kv_usage=0.0, capacity_tokens=1000)
    door.director.table.read("127.0.0.1:9", reading, 0.0)
    decision, _ = await door.ask(1, session="s")
    assert door.admission.session_counts()["placed"] == 1
    door.director.settle(decision, end)
    assert door.admission.session_counts()["placed"] == kept
