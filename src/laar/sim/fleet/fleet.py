"""A fleet in virtual time behind the director that serves.

The picker of the lab is the product's: `laar.core.director.Director` with its table, policies,
prefix index and learners. Only what surrounds it is simulated: engines, links, and the collectors,
whose readings travel and are as old here as there. Per request: decide and reserve; half a round
trip; the engine; half a round trip back, when the picker sees the first byte; and the end.

One generator for each concern (ties, each link, each probe, engines, sampling), all made from the
run's seed, so that two policies with one seed meet the same network and the same fleet.

It does not model Envoy, the picker's own time, or a client's distance to the picker: clients sit
beside it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from laar.core.cost import CostWeights
from laar.core.decision import Completion, Decision, DirectorSettings, Retries
from laar.core.director import Director
from laar.core.endpoints import EndpointSpec, EndpointTable, Reading
from laar.core.filters import FilterSettings
from laar.core.interfaces import Assessor, NoPrefixes
from laar.core.policy import Policy
from laar.core.request import Request
from laar.errors import RequestError, SettingError, unknown
from laar.flow.admission import Admission, FlowSettings
from laar.policies import build_policies
from laar.protocol.sampling import Sampler
from laar.settings.reading import Bodies, Readings
from laar.settings.routing import Prefix
from laar.sim.engine import Job, Load
from laar.sim.fleet.assessor import MeasuredAssessor
from laar.sim.fleet.channel import Channel
from laar.sim.fleet.clock import VirtualClock
from laar.sim.fleet.link import Link
from laar.sim.fleet.prompts import BLOCK_TOKENS, BlockPrefixes, Prompt
from laar.sim.fleet.site import EngineHost, Site

__all__ = ["Exchange", "FleetSettings", "VirtualFleet", "generator"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """How the picker of a run is set up; the defaults are those of the settings file.

    Args:
        policy: by name.
        parameters: of that policy, where they are not its defaults.
        weights: of the cost.
        filters: thresholds of the filters.
        use_prefixes: keep a prefix index.
        prefix_bytes: memory for it.
        scrape_interval_s: between two readings of an engine's metrics.
        probe_interval_s: between two round-trip probes.
        retries: whose rule it is where a retry goes, the policy's or the picker's.
        sample_answers: share of answers whose usage is read; 0 reads none.
        sample_every_s: an answer is read when none was for so long.
        pickers: how many there are; each request comes to one of them by chance.
        flow: how requests are admitted; None decides each at once, whoever is full.
        share_delay_s: from a picker's sending what it knows until the others have it; None: each
            is alone.
    """

    policy: str = DirectorSettings().policy
    parameters: Mapping[str, object] = field(default_factory=dict)
    weights: CostWeights = field(default_factory=CostWeights)
    filters: FilterSettings = field(default_factory=FilterSettings)
    use_prefixes: bool = Prefix().enabled
    prefix_bytes: int = Prefix().max_bytes
    scrape_interval_s: float = Readings().scrape_interval_s
    probe_interval_s: float = Readings().probe_interval_s
    retries: Retries = DirectorSettings().retries
    sample_answers: float = Bodies().sample_answers
    sample_every_s: float = Bodies().sample_every_s
    pickers: int = 1
    flow: FlowSettings | None = None
    share_delay_s: float | None = None


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One request on its way; what a client beside the picker saw, seconds on the virtual clock."""

    request: Request
    prompt: Prompt
    decision: Decision
    sent_s: float
    first_s: float = 0.0
    end_s: float = 0.0
    cached_tokens: int = 0
    status: int = 200
    picker: int = 0

    @property
    def latency_s(self) -> float:
        """From sending to the last byte."""
        return self.end_s - self.sent_s


OnEnd = Callable[[Exchange], None]

_TICK_S = 0.1


@dataclass(slots=True)
class _Held:
    """A request that is not decided yet."""

    request: Request
    prompt: Prompt
    on_end: OnEnd
    normal: float
    sent_s: float


def generator(seed: int, concern: str) -> random.Random:
    """The random numbers of one concern of one run."""
    return random.Random(f"{seed}/{concern}")


class VirtualFleet:
    """Endpoints, collectors and the director on one virtual clock.

    Args:
        sites: the endpoints, at least one.
        settings: of the picker.
        seed: of the run.
        assessor: what the picker knows of models; None for the engines' measured speeds.
        policies: by name; None for the product's, fresh.

    Attributes:
        shed: requests that flow control refused while they waited.

    Raises:
        SettingError: no endpoints, two of one name, a block size that is no multiple of 16, or an
            unknown policy or parameter.
    """

    def __init__(
        self,
        sites: Sequence[Site],
        settings: FleetSettings,
        *,
        seed: int,
        assessor: Assessor | None = None,
        policies: Mapping[str, Policy] | None = None,
    ) -> None:
        if not sites:
            raise SettingError("the fleet has no endpoints; describe at least one")
        for site in sites:
            if site.engine.settings.block_size % BLOCK_TOKENS:
                raise SettingError(
                    f"{site.name}: block_size must be a multiple of {BLOCK_TOKENS} in the lab"
                )
        if len({site.name for site in sites}) < len(sites):
            raise SettingError("two endpoints of the fleet have one name; rename one")
        self.clock = VirtualClock()
        self.settings = settings
        self._sampler = Sampler(
            settings.sample_answers,
            every_s=settings.sample_every_s,
            rng=generator(seed, "samples"),
        )
        self._jitter = generator(seed, "jitter")
        self._sites = {site.name: site for site in sites}
        self._links = {
            name: Link(site.link, generator(seed, f"link {name}"))
            for name, site in self._sites.items()
        }
        self._probes = {name: generator(seed, f"probe {name}") for name in self._sites}
        self._hosts = {
            name: EngineHost(
                self.clock,
                site.engine,
                seed=generator(seed, f"engine {name}").getrandbits(32),
            )
            for name, site in self._sites.items()
        }
        self._prefixes = [
            BlockPrefixes(key=b"lab", max_bytes=settings.prefix_bytes)
            for _ in range(settings.pickers)
        ]
        assessor = assessor or MeasuredAssessor(sites)
        self.directors = [
            self._picker(
                number,
                seed,
                assessor,
                policies
                or build_policies(settings.weights, {settings.policy: settings.parameters}),
            )
            for number in range(settings.pickers)
        ]
        self.director = self.directors[0]
        flow = settings.flow
        self._admissions = [Admission(one, flow) for one in self.directors] if flow else []
        self._held: dict[tuple[int, object], _Held] = {}
        self._ticks = False
        self.shed: list[Request] = []
        self._comes_to = generator(seed, "pickers")
        self.channel: Channel | None = None
        if settings.share_delay_s is not None:
            self.channel = Channel(self.clock, self.directors, settings.share_delay_s)
        self._start_collectors(seed)

    def send(
        self,
        request: Request,
        prompt: Prompt,
        on_end: OnEnd,
        *,
        normal: float | None = None,
    ) -> Exchange | None:
        """Sends a request now; None where flow control holds it.

        Args:
            request: as the picker sees it; its id must be new.
            prompt: as the engine sees it.
            on_end: called when its last byte, or its refusal, is here.
            normal: its draw of jitter; None to draw one.

        Raises:
            RequestError: the picker has no endpoint for it.
        """
        now = self.clock.now
        number = self._comes_to.randrange(len(self.directors)) if len(self.directors) > 1 else 0
        self._prefixes[number].upcoming = prompt
        draw = self._jitter.gauss(0.0, 1.0) if normal is None else normal
        held = _Held(request, prompt, on_end, draw, now)
        if not self._admissions:
            return self._go(held, self.directors[number].decide(request, now), number)
        answer = self._admissions[number].ask(request, now)
        if isinstance(answer, Decision):
            return self._go(held, answer, number)
        self._held[number, answer] = held
        self._prefixes[number].held[request.id] = prompt
        if not self._ticks:
            self._ticks = True
            self.clock.at(now + _TICK_S, self._tick)
        self._dispatch(number)
        return None

    def _tick(self) -> None:
        """Looks at who may go when nothing else has happened, as the product's timer does."""
        for number in range(len(self._admissions)):
            self._dispatch(number)
        self._ticks = bool(self._held)
        if self._ticks:
            self.clock.at(self.clock.now + _TICK_S, self._tick)

    def _dispatch(self, number: int) -> None:
        """Lets go who may go."""
        for outcome in self._admissions[number].dispatch(self.clock.now):
            held = self._held.pop((number, outcome.ticket))
            del self._prefixes[number].held[held.request.id]
            if isinstance(outcome.verdict, Decision):
                self._go(held, outcome.verdict, number)
            elif isinstance(outcome.verdict, RequestError):
                self.shed.append(held.request)
            else:
                raise outcome.verdict

    def _go(self, held: _Held, decision: Decision, number: int) -> Exchange:
        now = self.clock.now
        request, prompt, on_end, draw = held.request, held.prompt, held.on_end, held.normal
        exchange = Exchange(
            request=request, prompt=prompt, decision=decision, sent_s=held.sent_s, picker=number
        )
        self._touched(number)
        half = 0.5 * self._links[decision.address].rtt_s(now, draw)
        self.clock.at(now + half, self._arrive, exchange, half, on_end)
        return exchange

    def intrude(self, address: str, name: str, prompt: Prompt) -> None:
        """Puts a request that the picker knows nothing of into an endpoint now."""
        self._hosts[address].submit(
            self._job(address, name, prompt, None), lambda _cached: None, lambda _refusal: None
        )

    # -- a request's life ----------------------------------------------------------------------

    def _arrive(self, exchange: Exchange, half: float, on_end: OnEnd) -> None:
        clock, prompt = self.clock, exchange.prompt

        def first(cached_tokens: int) -> None:
            exchange.cached_tokens = cached_tokens
            exchange.first_s = clock.now + half
            clock.at(exchange.first_s, self._answering, exchange)

        def end(refusal: RequestError | None) -> None:
            exchange.status = refusal.status if refusal else 200
            clock.at(clock.now + half, self._settle, exchange, on_end)

        address, request = exchange.decision.address, exchange.request
        self._hosts[address].submit(
            self._job(address, request.id, prompt, request.ttft_objective_s), first, end
        )

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
        self.directors[exchange.picker].answering(exchange.decision, exchange.first_s)
        self._touched(exchange.picker)
        if self._admissions:
            self._admissions[exchange.picker].answering(exchange.decision, exchange.first_s)
            self._dispatch(exchange.picker)

    def _touched(self, number: int) -> None:
        if self.channel is not None:
            self.channel.touched(number)

    def _settle(self, exchange: Exchange, on_end: OnEnd) -> None:
        now = self.clock.now
        exchange.end_s = now
        ok = exchange.status == 200
        sampled = self._sampler.draw(now) and ok
        end = Completion(
            status=exchange.status,
            cause="complete",
            latency_s=now - exchange.decision.now,
            ttft_s=exchange.first_s - exchange.decision.now if ok else None,
            prompt_tokens=exchange.prompt.prompt_tokens if sampled else None,
            completion_tokens=exchange.prompt.output_tokens if sampled else None,
            cached_tokens=exchange.cached_tokens if sampled else None,
        )
        self.directors[exchange.picker].settle(exchange.decision, end)
        self._touched(exchange.picker)
        if self._admissions:
            self._admissions[exchange.picker].ended(exchange.decision)
        on_end(exchange)
        if self._admissions:
            self._dispatch(exchange.picker)

    # -- parts ---------------------------------------------------------------------------------

    def _picker(
        self, number: int, seed: int, assessor: Assessor, policies: Mapping[str, Policy]
    ) -> Director:
        table = EndpointTable()
        table.replace(
            "lab", [EndpointSpec(address=s.name, models=(s.model,)) for s in self._sites.values()]
        )
        if self.settings.policy not in policies:
            raise SettingError(unknown("policy", self.settings.policy, policies))
        return Director(
            table,
            policies,
            DirectorSettings(
                policy=self.settings.policy,
                fallbacks=0,
                filters=self.settings.filters,
                retries=self.settings.retries,
            ),
            rng=generator(seed, f"ties {number}" if number else "ties"),
            assessor=assessor,
            prefixes=self._prefixes[number] if self.settings.use_prefixes else NoPrefixes(),
        )

    def _start_collectors(self, seed: int) -> None:
        """The picker has been up for a while: everything was read once, intervals are out of step.

        Intervals are not jittered as the product's are: phases drawn once spread them as well.
        """
        phases = generator(seed, "phases")
        scrape_s, probe_s = self.settings.scrape_interval_s, self.settings.probe_interval_s
        for name in self._sites:
            self._read(name, self._hosts[name].load())
            self._measured(name, self._round_trip_s(name))
            self.clock.later(phases.random() * scrape_s, self._scrape, name)
            self.clock.later(phases.random() * probe_s, self._probe, name)

    def _round_trip_s(self, name: str) -> float:
        return self._links[name].rtt_s(self.clock.now, self._probes[name].gauss(0.0, 1.0))

    def _scrape(self, name: str) -> None:
        """The page is made half a round trip from now, and read another half later."""
        now, half = self.clock.now, 0.5 * self._round_trip_s(name)
        self.clock.later(now + half, self._page, name, half)
        self.clock.later(now + self.settings.scrape_interval_s, self._scrape, name)

    def _page(self, name: str, half: float) -> None:
        self.clock.later(self.clock.now + half, self._read, name, self._hosts[name].load())

    def _read(self, name: str, load: Load) -> None:
        settings = self._sites[name].engine.settings
        reading = Reading(
            waiting=load.waiting,
            running=load.running,
            kv_usage=load.kv_usage,
            capacity_tokens=settings.num_blocks * settings.block_size,
        )
        for director in self.directors:
            slot = director.table.read(name, reading, self.clock.now)
            director.prefixes.set_capacity(slot, reading.capacity_tokens)

    def _probe(self, name: str) -> None:
        now, rtt_s = self.clock.now, self._round_trip_s(name)
        self.clock.later(now + rtt_s, self._measured, name, rtt_s)
        self.clock.later(now + self.settings.probe_interval_s, self._probe, name)

    def _measured(self, name: str, rtt_s: float) -> None:
        for director in self.directors:
            director.table.round_trip(name, rtt_s, self.clock.now)
