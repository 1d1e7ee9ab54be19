"""Fleets of the suite and of some experiments, and what the picker knows about them beforehand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from laar.accuracy.assessment import Assessment, PlainAssessor
from laar.core.interfaces import Assessor
from laar.request import Request
from laar_lab.sim.engine import EngineProfile, LinearCost, load_profile, slowed
from laar_lab.sim.fleet import LinkProfile, MeasuredAssessor, Site

BLOCK_TOKENS = 128
"""Block size of the suite's engines. With 128 tokens instead of vLLM's 16, a run takes an eighth
of the work, and about 60 tokens of each prefix are lost."""

_REGIONS = {
    "ashburn": LinkProfile(rtt_s=0.037, jitter=0.05),
    "frankfurt": LinkProfile(rtt_s=0.279, jitter=0.10),
    "seoul": LinkProfile(rtt_s=0.456, jitter=0.20, spell_rtt_s=0.85, spell_share=0.05),
}
"""GORGO's regions; see `experiments/gorgo_runs.py`."""


def coarse(profile: EngineProfile, kv_tokens: int | None = None) -> EngineProfile:
    """Return the engine with large KV blocks, for `kv_tokens` in total; None keeps the total."""
    old = profile.settings
    tokens = kv_tokens or old.num_blocks * old.block_size
    settings = replace(old, num_blocks=tokens // BLOCK_TOKENS, block_size=BLOCK_TOKENS)
    return replace(profile, settings=settings)


def of_one(
    profile: str, count: int, *, kv_tokens: int | None = None, slots: int | None = None
) -> list[Site]:
    """Return `count` endpoints of one kind, next to the picker."""
    engine = coarse(load_profile(profile), kv_tokens)
    if slots is not None:
        engine = replace(engine, settings=replace(engine.settings, max_num_seqs=slots))
    return _sites([engine] * count)


def tokenizing(sites: Sequence[Site]) -> list[Site]:
    """Return the endpoints with vLLM's tokenization, as measured on an H200 (docs/race/gpu.md)."""
    return [replace(site, tokenize_s_per_token=2.4e-6) for site in sites]


def workers(engine: EngineProfile, count: int, name: str = "worker") -> list[Site]:
    """Return `count` endpoints of one engine, in the picker's zone."""
    link = LinkProfile(rtt_s=0.0004)
    return [Site(name=f"{name}-{n}", model="model", engine=engine, link=link) for n in range(count)]


def _sites(engines: Sequence[EngineProfile]) -> list[Site]:
    return [
        Site(name=f"endpoint-{n}", model="model", engine=engine) for n, engine in enumerate(engines)
    ]


def regions(each: int = 1) -> list[Site]:
    """Return GORGO's three regions with `each` endpoints per region."""
    engine = coarse(load_profile("gorgo-main"))
    return [
        Site(name=f"{region}-{n}", model="model", engine=engine, link=link)
        for region, link in _REGIONS.items()
        for n in range(each)
    ]


def mixed_devices(profile: str, fast: int, slow: int, factor: float, **given: int) -> list[Site]:
    """Return endpoints of one model on fast and slow devices, which no label tells apart."""
    engine = coarse(load_profile(profile), given.get("kv_tokens"))
    return _sites([engine] * fast + [slowed(engine, factor)] * slow)


def parallel(fast: int = 8, slow: int = 0, *, kv_tokens: int | None = None) -> list[Site]:
    """Return engines that prefill concurrently, `slow` of them 2.5 times slower."""
    engine = coarse(load_profile("parallel"), kv_tokens)
    return _sites([engine] * fast + [slowed(engine, 2.5)] * slow)


def mixed_models() -> list[Site]:
    """Return a small, a medium and a large model with two endpoints each."""
    engine = coarse(load_profile("gorgo-main"))
    speeds = {"small": 0.5, "middle": 1.0, "large": 2.5}
    return [
        Site(name=f"{model}-{n}", model=model, engine=slowed(engine, factor))
        for model, factor in speeds.items()
        for n in range(2)
    ]


def two_names() -> list[Site]:
    """Return identical engines under two model names, so that a picker can be wrong about both."""
    engine = coarse(load_profile("gorgo-main"))
    return [
        Site(name=f"{model}-{n}", model=model, engine=engine)
        for model in ("one", "other")
        for n in range(3)
    ]


def changed(sites: Sequence[Site], **constants: float) -> list[Site]:
    """Return the same fleet with some constants of its linear cost changed."""
    made = []
    for site in sites:
        cost = site.engine.cost
        assert isinstance(cost, LinearCost)
        engine = replace(site.engine, cost=replace(cost, **constants))
        made.append(replace(site, engine=engine))
    return made


def superlinear(count: int) -> list[Site]:
    """Return engines on which a prompt of 16,000 tokens takes twice its linear time."""
    return changed(of_one("gorgo-main", count), prefill_s_per_pair=1.25e-8)


def decode_bound(count: int) -> list[Site]:
    """Return engines on which a batch of 32 makes every token three times as slow."""
    return changed(of_one("gorgo-main", count), decode_s_per_sequence=4.7e-4)


@dataclass(frozen=True, slots=True)
class WrongSpeeds:
    """Measured speeds that are wrong by a factor for each model.

    Args:
        inner: assessor with the correct speeds.
        factors: factors by model.
    """

    inner: Assessor
    factors: dict[str, float]

    def assess(
        self, request: Request, models: Sequence[str], tried: Sequence[str], now: float
    ) -> Assessment:
        """Return the wrapped assessor's estimates with the speeds multiplied by the factors."""
        found = self.inner.assess(request, models, tried, now)
        factors = np.array([self.factors[model] for model in models])
        found.seconds_per_token = found.seconds_per_token * factors
        return found


Knowledge = Callable[[Sequence[Site]], Assessor]
"""Makes the picker's prior knowledge of the models."""


def nothing(sites: Sequence[Site]) -> Assessor:
    """Return what a picker knows without an artifact: the default speed for every model."""
    return PlainAssessor()


def measured(sites: Sequence[Site]) -> Assessor:
    """Return what a picker knows from an artifact: the speeds of idle engines, by model."""
    return MeasuredAssessor(sites)


def mistaken(sites: Sequence[Site]) -> Assessor:
    """Return wrong knowledge: one model seems twice as slow as it is, the other twice as fast."""
    return WrongSpeeds(MeasuredAssessor(sites), {"one": 2.0, "other": 0.5})
