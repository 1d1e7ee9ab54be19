"""A fleet in virtual time behind the production director.

The lab's picker is the product's: `laar.core.director.Director` with its table, policies, prefix
index and learners. Only its surroundings are simulated: engines, links, and the collectors, whose
readings are delayed as in production. A request gets a decision and a reservation, travels for half
a round trip, and runs in the engine; the picker sees its first byte and end on the way back.

Each concern (ties, each link, each probe, sampling) has a separate generator made from the
run's seed, so two policies with the same seed get the same network and the same fleet.

It does not model Envoy, the picker's processing time, or a client's distance to the picker.
Engines send headers as soon as they accept a request, like vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from laar.core.decision import Completion, Decision
from laar.core.interfaces import Assessor
from laar.core.policy import Policy
from laar.errors import RequestError, SettingError
from laar.flow.settings import FlowSettings
from laar.health import GOOD, Reply
from laar.health.explained import Shown
from laar.plugins.apart import PrefillApart
from laar.plugins.pulls import Pulls
from laar.policies import build_policies
from laar.prefix.beliefs import BYTES_PER_TOKEN
from laar.protocol.sampling import Sampler
from laar.request import Request
from laar_lab.sim.engine import Job
from laar_lab.sim.fleet.assessor import MeasuredAssessor, speeds_of
from laar_lab.sim.fleet.channel import Channel
from laar_lab.sim.fleet.clock import VirtualClock
from laar_lab.sim.fleet.collectors import Collectors
from laar_lab.sim.fleet.exchange import Exchange
from laar_lab.sim.fleet.flow import FlowControl
from laar_lab.sim.fleet.kv_events import learn
from laar_lab.sim.fleet.link import Link, generator
from laar_lab.sim.fleet.pickers import build_picker, endpoint_of
from laar_lab.sim.fleet.probes import Probes
from laar_lab.sim.fleet.prompts import BLOCK_TOKENS, BlockPrefixes, Prompt
from laar_lab.sim.fleet.settings import FleetSettings
from laar_lab.sim.fleet.site import EngineHost, Site

_PULL_S = 0.026
"""Seconds of a pull besides its bandwidth; llm-d measured 35 ms for 2,000 tokens."""

_CHUNKS_EVERY_S = 0.5
"""Seconds between two reports of an answer's progress, as in the product."""

OnEnd = Callable[[Exchange], None]
OnRefused = Callable[[RequestError], None]


class VirtualFleet:
    """Endpoints, collectors and directors on one virtual clock.

    Args:
        sites: the endpoints, at least one.
        settings: settings of the picker.
        seed: seed of the run.
        assessor: provides the picker's estimates of models; None for the engines' measured speeds.
        policies: policies by name; None for new instances of the product's.
        flow: settings of the flow control in `enqueue`; None to hold no requests.
        by_load: whether flow control holds requests while every endpoint is full, instead of
            holding only turns whose context has no room in a cache.

    Raises:
        SettingError: there are no endpoints, two share a name, a block size is not a multiple of
            16, or a policy or parameter is unknown.
    """

    def __init__(
        self,
        sites: Sequence[Site],
        settings: FleetSettings,
        *,
        seed: int,
        assessor: Assessor | None = None,
        policies: Mapping[str, Policy] | None = None,
        flow: FlowSettings | None = None,
        by_load: bool = True,
    ) -> None:
        if not sites:
            raise SettingError("the fleet has no endpoints; add at least one")
        for site in sites:
            if site.engine.settings.block_size % BLOCK_TOKENS:
                raise SettingError(
                    f"{site.name}: block_size must be a multiple of {BLOCK_TOKENS} in the lab"
                )
        if len({site.name for site in sites}) < len(sites):
            raise SettingError("two endpoints of the fleet have the same name; rename one")
        self.clock = VirtualClock()
        self.settings = settings
        self._sampler = Sampler(
            settings.sample_answers,
            every_s=settings.sample_every_s,
            rng=generator(seed, "samples"),
        )
        self._jitter = generator(seed, "jitter")
        self._sites = {site.name: site for site in sites}
        self._tokenized_at = dict.fromkeys(self._sites, 0.0)
        self._pulled_at = dict.fromkeys(self._sites, 0.0)
        self._links = {
            name: Link(site.link, generator(seed, f"link {name}"))
            for name, site in self._sites.items()
        }
        self._hosts = {
            name: EngineHost(self.clock, site.engine) for name, site in self._sites.items()
        }
        self._prefixes = [
            BlockPrefixes(key=b"lab", max_bytes=settings.prefix_bytes)
            for _ in range(settings.pickers)
        ]
        assessor = assessor or MeasuredAssessor(sites)
        self.directors = [
            build_picker(
                sites,
                settings,
                number=number,
                seed=seed,
                assessor=assessor,
                prefixes=prefixes,
                policies=policies
                or build_policies(settings.weights, {settings.policy: settings.parameters}),
            )
            for number, prefixes in enumerate(self._prefixes)
        ]
        for director in self.directors:
            director.engines.reassess(speeds_of(assessor))
        self.director = self.directors[0]
        self.flows = [
            FlowControl(director, prefixes, flow, self.clock, by_load=by_load)
            for director, prefixes in zip(self.directors, self._prefixes, strict=True)
            if flow is not None
        ]
        self._comes_to = generator(seed, "pickers")
        self.channel: Channel | None = None
        if settings.share_delay_s is not None:
            self.channel = Channel(self.clock, self.directors, settings.share_delay_s, self.flows)
        self._collectors = Collectors(
            self.clock,
            sites,
            self._hosts,
            self._links,
            self.directors,
            reads_states=settings.cached_as != "blocks",
            follows_events=settings.cached_as == "events",
            scrape_interval_s=settings.scrape_interval_s,
            probe_interval_s=settings.probe_interval_s,
            seed=seed,
        )
        if settings.health is not None:
            rng = generator(seed, "asks")
            Probes(self.clock, self._hosts, self._links, self.directors, rng)
        self._streams: dict[str, dict[str, Exchange]] = {name: {} for name in self._sites}
        for name in self._sites:
            self.clock.later(_CHUNKS_EVERY_S, self._continue, name)
        for one in self.flows:
            self._collectors.on_reading.append(one.dispatch)

    def send(
        self,
        request: Request,
        prompt: Prompt,
        on_end: OnEnd,
        *,
        normal: float | None = None,
    ) -> Exchange:
        """Send a request now.

        Args:
            request: the request as the picker sees it, with a new id.
            prompt: the prompt as the engine sees it.
            on_end: called when its last byte or its refusal arrives.
            normal: the jitter draw of the request; None to draw one.

        Raises:
            RequestError: the picker has no endpoint for the request.
        """
        now = self.clock.now
        self._choose_to_read(request)
        number = self._picker()
        self._prefixes[number].upcoming = prompt
        exchange = Exchange(
            request=request,
            prompt=prompt,
            decision=self.directors[number].decide(request, now),
            sent_s=now,
            picker=number,
        )
        self._forward(exchange, on_end, normal)
        return exchange

    def enqueue(
        self, request: Request, prompt: Prompt, on_end: OnEnd, on_refused: OnRefused
    ) -> None:
        """Send a request now, or once flow control has room for it.

        Args:
            request: as for `send`.
            prompt: as for `send`.
            on_end: as for `send`.
            on_refused: called instead if the picker refuses the request.
        """
        sent_s = self.clock.now
        if not self.flows:
            try:
                self.send(request, prompt, on_end)
            except RequestError as error:
                on_refused(error)
            return

        self._choose_to_read(request)
        number = self._picker()

        def decided(decision: Decision) -> None:
            exchange = Exchange(
                request=request, prompt=prompt, decision=decision, sent_s=sent_s, picker=number
            )
            self._forward(exchange, on_end, None)

        self.flows[number].ask(request, prompt, decided, on_refused)

    def cancel(self, exchange: Exchange) -> None:
        """Cancel a disconnected client's request: the engine drops it, and its reservation ends.

        The engine and the picker learn of it immediately, without the delay of a network.
        """
        if exchange.cancelled or exchange.end_s:
            return
        now = self.clock.now
        exchange.cancelled, exchange.end_s = True, now
        self._streams[exchange.address].pop(exchange.request.id, None)
        self._hosts[exchange.address].abort(exchange.request.id)
        if (prefiller := PrefillApart.of(exchange.decision)) is not None:
            self._hosts[prefiller.address].abort(_prefill_id(exchange.request.id))
        end = Completion(status=None, cause="disconnect", latency_s=now - exchange.sent_s)
        self.directors[exchange.picker].settle(exchange.decision, end)
        self._touched(exchange.picker)

    def discover(self, names: Iterable[str], draining: Sequence[str] = ()) -> None:
        """Set the discovered endpoints; removed ones finish the requests they have."""
        specs = [
            endpoint_of(self._sites[name], self.settings, drains=name in draining)
            for name in (*names, *draining)
        ]
        for director in self.directors:
            director.table.replace("lab", specs)

    def host(self, name: str) -> EngineHost:
        """Return the engine at an endpoint, for stopping and starting it."""
        return self._hosts[name]

    def intrude(self, address: str, name: str, prompt: Prompt) -> None:
        """Submit a request directly to an endpoint, unknown to the picker."""
        self._hosts[address].submit(
            self._job(address, name, prompt, None), lambda _cached: None, lambda _refusal: None
        )

    def _picker(self) -> int:
        """Return the number of the picker to send the next request to."""
        return self._comes_to.randrange(len(self.directors)) if len(self.directors) > 1 else 0

    # -- the life of a request -----------------------------------------------------------------

    def _choose_to_read(self, request: Request) -> None:
        """Choose whether to read the answer, if its first token is not seen otherwise."""
        if self.settings.first_tokens == "sampled":
            request.first_token_seen = self._sampler.draw(self.clock.now)

    def _forward(self, exchange: Exchange, on_end: OnEnd, normal: float | None) -> None:
        now = self.clock.now
        self._touched(exchange.picker)
        draw = self._jitter.gauss(0.0, 1.0) if normal is None else normal
        link, size = self._links[exchange.address], exchange.prompt.prompt_tokens * BYTES_PER_TOKEN
        rtt_s = link.rtt_s(now, draw)
        half = 0.5 * rtt_s
        at_s = now + half + rtt_s * link.upload_rounds(now, size)
        site = self._sites[exchange.address]
        if site.tokenize_s_per_token:
            at_s = max(at_s, self._tokenized_at[site.name])
            at_s += site.tokenize_s_per_token * exchange.prompt.prompt_tokens
            self._tokenized_at[site.name] = at_s
        self.clock.at(at_s, self._arrive, exchange, half, on_end)

    def _arrive(self, exchange: Exchange, half: float, on_end: OnEnd) -> None:
        """Handle a request's arrival at its endpoint; a prefiller, if chosen, prefills first.

        An endpoint and its prefiller are in the same place, so only the transfer of KV takes time.
        If the prefiller refuses, the endpoint prefills.
        """
        prefiller, clock = PrefillApart.of(exchange.decision), self.clock
        if prefiller is None or exchange.cancelled:
            self._pull(exchange, half, on_end)
            return

        def read(refusal: RequestError | None) -> None:
            if refusal is not None:
                self._answer(exchange, half, on_end, 0)
                return
            name, host = exchange.address, self._hosts[exchange.address]
            job = self._job(name, exchange.request.id, exchange.prompt, None)
            missing = job.prompt_tokens - host.cached_tokens(job)
            there_s = clock.now + missing / self._sites[name].transfer_tokens_per_s
            clock.at(there_s, self._answer, exchange, half, on_end, job.prompt_tokens - 1)

        other, name = prefiller.address, _prefill_id(exchange.request.id)
        job = replace(self._job(other, name, exchange.prompt, None), output_tokens=1)
        self._hosts[other].submit(job, lambda _cached: None, read)

    def _pull(self, exchange: Exchange, half: float, on_end: OnEnd) -> None:
        """Pull what another endpoint has cached, if the picker or the rule `always` says so.

        The pulls from an endpoint share its bandwidth. What it no longer has is computed.
        """
        source, name, there = self._source(exchange), exchange.address, 0
        if source and source != name and not self._hosts[source].down:
            job = self._job(name, exchange.request.id, exchange.prompt, None)
            there = self._hosts[source].cached_tokens(job)
            missing = there - self._hosts[name].cached_tokens(job)
            if missing > 0:
                seconds = missing / self._sites[source].transfer_tokens_per_s
                done_s = max(self.clock.now, self._pulled_at[source]) + seconds
                self._pulled_at[source] = done_s
                self.clock.at(done_s + _PULL_S, self._answer, exchange, half, on_end, there)
                return
        self._answer(exchange, half, on_end, 0)

    def _source(self, exchange: Exchange) -> str:
        """Return the name of the endpoint to pull from; empty for none."""
        decision = exchange.decision
        if self.settings.pulls != "always" or (view := decision.view) is None:
            pull = Pulls.of(decision)
            return "" if pull is None else pull.address
        held = view.cached_tokens
        if held.max() < held[decision.position] + 1.0:
            return ""
        near = np.flatnonzero(held >= held.max() - BLOCK_TOKENS)
        source = near[view.table.in_flight[view.slots[near]].argmin()]
        return view.table.spec(view.slots.item(source)).address

    def _answer(self, exchange: Exchange, half: float, on_end: OnEnd, fetched: int) -> None:
        clock, prompt = self.clock, exchange.prompt
        if exchange.cancelled:
            return

        def first(cached_tokens: int) -> None:
            exchange.cached_tokens = cached_tokens
            exchange.first_s = clock.now + half
            clock.at(exchange.first_s, self._answering, exchange)

        def accepted() -> None:
            exchange.accepted = True
            clock.at(clock.now + half, self._replied, exchange)

        def end(refusal: RequestError | None) -> None:
            exchange.status = refusal.status if refusal else 200
            next_one = self._settle
            if exchange.status >= 500 and not exchange.accepted:
                next_one = self._try_next
            clock.at(clock.now + half, next_one, exchange, on_end)

        address, request = exchange.address, exchange.request
        job = self._job(address, request.id, prompt, request.ttft_objective_s)
        self._hosts[address].submit(replace(job, fetched=fetched), first, end, accepted)

    def _try_next(self, exchange: Exchange, on_end: OnEnd) -> None:
        """Retry as Envoy does; the picker learns of it only when an answer begins."""
        if exchange.cancelled:
            return
        if len(exchange.failed) < len(exchange.decision.fallbacks):
            exchange.failed += (exchange.address,)
            exchange.status = 200
            self._forward(exchange, on_end, None)
            return
        self._replied(exchange)
        if self.flows:
            self.flows[exchange.picker].answering(exchange.decision, ok=False)
        self._settle(exchange, on_end)

    def _replied(self, exchange: Exchange) -> None:
        """Report the endpoint's status to the director."""
        if exchange.cancelled or exchange.end_s:
            return
        director, decision = self.directors[exchange.picker], exchange.decision
        if exchange.failed:
            director.attempted(decision, exchange.failed, self.clock.now)
            director.served_by(decision, exchange.address, self.clock.now)
            if self.flows:
                self.flows[exchange.picker].moved(decision)
        reply = Reply(status=200 if exchange.accepted else exchange.status)
        read = exchange.request.first_token_seen
        director.replied(decision, reply, self.clock.now, read=read)

    def _job(self, address: str, name: str, prompt: Prompt, objective_s: float | None) -> Job:
        stride = self._sites[address].engine.settings.block_size // BLOCK_TOKENS
        return Job(
            id=name,
            arrival_s=self.clock.now,
            prompt_tokens=prompt.prompt_tokens,
            output_tokens=prompt.output_tokens,
            blocks=prompt.blocks[stride - 1 :: stride],
            ttft_objective_s=objective_s,
        )

    def _answering(self, exchange: Exchange) -> None:
        if exchange.cancelled or not exchange.request.first_token_seen:
            return
        if self.settings.first_tokens == "sampled":
            self._sampler.read(exchange.prompt.output_tokens, self.clock.now)
        self._streams[exchange.address][exchange.request.id] = exchange
        self.directors[exchange.picker].answering(exchange.decision, exchange.first_s)
        self._touched(exchange.picker)
        if self.flows:
            self.flows[exchange.picker].answering(exchange.decision)

    def _continue(self, name: str) -> None:
        """Report new chunks of answers that are still being read."""
        now = self.clock.now
        self.clock.later(now + _CHUNKS_EVERY_S, self._continue, name)
        for job_id, exchange in self._streams[name].items():
            if self._hosts[name].decodes(job_id):
                self.directors[exchange.picker].answering(exchange.decision, now)

    def _touched(self, number: int) -> None:
        if self.channel is not None:
            self.channel.touched(number)

    def _settle(self, exchange: Exchange, on_end: OnEnd) -> None:
        if exchange.cancelled:
            return
        now = self.clock.now
        exchange.end_s = now
        if exchange.status == 200:
            self._links[exchange.address].freed(now)
        ok, decided_s = exchange.status == 200, exchange.decision.now
        seen = ok and exchange.request.first_token_seen
        sampled = (
            seen if self.settings.first_tokens == "sampled" else self._sampler.draw(now) and ok
        )
        broke_off = not ok and exchange.accepted
        end = Completion(
            status=200 if broke_off else exchange.status,
            cause="reset" if broke_off else "complete",
            latency_s=now - decided_s,
            ttft_s=exchange.first_s - decided_s if seen else None,
            prompt_tokens=exchange.prompt.prompt_tokens if sampled else None,
            completion_tokens=exchange.prompt.output_tokens if sampled else None,
            cached_tokens=exchange.cached_tokens if sampled else None,
            # Engines of a model answer alike, of which the picker reads a part.
            shown=Shown("chat", exchange.prompt.output_tokens, "content", hash(exchange.request.id))
            if ok
            else None,
        )
        director = self.directors[exchange.picker]
        if self._streams[exchange.address].pop(exchange.request.id, None) and ok:
            director.replied(exchange.decision, Reply(status=200, found=GOOD), now, read=True)
        director.settle(exchange.decision, end)
        self._touched(exchange.picker)
        view = exchange.decision.view
        if self.settings.cached_as == "events" and view is not None and view.chain is not None:
            job = self._job(exchange.address, "", exchange.prompt, None)
            size = self._sites[exchange.address].engine.settings.block_size
            blocks = job.blocks[: job.prompt_tokens // size]
            model = exchange.decision.model
            learn(director, model, view.chain, job.prompt_tokens, blocks, size)
        if self.flows:
            self.flows[exchange.picker].ended(exchange.decision)
        on_end(exchange)


def _prefill_id(name: str) -> str:
    return f"{name} prefill"
