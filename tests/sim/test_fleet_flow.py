"""Flow control in front of the virtual fleet: waiting, refusals, cleaning up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from laar.errors import RequestError
from laar.flow.settings import FlowSettings
from laar_lab.sim.fleet import (
    Arrival,
    Exchange,
    FleetSettings,
    LinkProfile,
    Prompt,
    Site,
    VirtualFleet,
    request_of,
    spread,
)
from support.engines import linear_engine

ENGINE = linear_engine(1e-3, 20_000)
SITE = Site(name="e:80", model="m", engine=ENGINE, link=LinkProfile(rtt_s=0.0))
SAME = Prompt(prompt_tokens=1600, output_tokens=2, blocks=spread(1, 100))


def serve(
    prompts: list[Prompt], flow: FlowSettings | None, fleet: VirtualFleet | None = None
) -> tuple[VirtualFleet, list[Exchange], list[RequestError]]:
    """Send all prompts together; without `fleet`, to a new one."""
    fleet = fleet or VirtualFleet([SITE], FleetSettings(), seed=1, flow=flow)
    ended: list[Exchange] = []
    refused: list[RequestError] = []
    now = fleet.clock.now
    for number, prompt in enumerate(prompts):
        session = "same" if prompt is SAME else ""
        request = request_of(
            number, Arrival(at_s=now, prompt=prompt, ttft_objective_s=1000.0, session=session)
        )
        fleet.enqueue(request, prompt, ended.append, refused.append)
    fleet.clock.run()
    return fleet, ended, refused


def other(number: int) -> Prompt:
    return Prompt(prompt_tokens=8000, output_tokens=2, blocks=spread(number << 30, 500))


def test_a_request_that_waited_is_decided_with_its_own_prompt() -> None:
    _, ended, _ = serve([other(number) for number in range(1, 6)], FlowSettings())
    waited = [exchange for exchange in ended if exchange.decision.now > 0.0]
    assert waited
    for exchange in waited:
        assert exchange.decision.uncached_tokens == pytest.approx(8000.0, abs=16)


@pytest.mark.parametrize("share_delay_s", [None, 0.01])
def test_each_of_several_pickers_has_its_own_queue(share_delay_s: float | None) -> None:
    settings = FleetSettings(pickers=2, share_delay_s=share_delay_s)
    fleet = VirtualFleet([SITE], settings, seed=1, flow=FlowSettings())
    ended: list[Exchange] = []
    refused: list[RequestError] = []
    for number in range(1, 9):
        arrival = Arrival(at_s=0.0, prompt=other(number), ttft_objective_s=1000.0)
        fleet.enqueue(request_of(number, arrival), arrival.prompt, ended.append, refused.append)
    fleet.clock.run()
    assert (len(ended), refused) == (8, [])
    assert {exchange.picker for exchange in ended} == {0, 1}
    assert [flow.left for flow in fleet.flows] == [0, 0]


def test_a_turn_moved_by_a_refusal_counts_where_it_was_served() -> None:
    settings = replace(ENGINE.settings, num_blocks=600)
    near = LinkProfile(rtt_s=0.001)
    site = replace(SITE, engine=replace(ENGINE, settings=settings), link=near)
    fleet = VirtualFleet(
        [site, replace(site, name="f:80", link=LinkProfile(rtt_s=0.1))],
        FleetSettings(fallbacks=1),
        seed=1,
        flow=FlowSettings(),
        by_load=False,
    )
    fleet.host("e:80").stop()
    fleet.clock.at(1.0, fleet.host("e:80").start)
    ended: list[Exchange] = []
    refused: list[RequestError] = []
    for number, at_s in ((2, 0.1), (3, 10.0), (4, 11.0)):
        prompt = other(number)
        request = request_of(number, Arrival(at_s=at_s, prompt=prompt, session=f"{number}"))
        fleet.clock.at(at_s, fleet.enqueue, request, prompt, ended.append, refused.append)
    fleet.clock.run()
    moved, second = ended
    assert (moved.failed, moved.address, refused) == (("e:80",), "f:80", [])
    assert second.decision.address == "e:80"
    assert fleet.flows[0].left == 1, "the third waits, as both caches are taken"
