"""`laar lab fit-engine`: fit the engine model to an endpoint and check the fit.

A fleet file can name the fitted profile like any other, so that `laar lab replay` predicts the
behavior of real engines. The check uses points that were not used for the fit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import cast

import aiohttp
import yaml
from scipy.stats import spearmanr  # type: ignore[import-untyped]

from laar.errors import SettingError
from laar_lab.probing import facts_of, measure
from laar_lab.report import Check, Report, Table, Value
from laar_lab.sim.engine.cost import LinearCost
from laar_lab.sim.engine.fitting import Point, Seen, check_points, fit, fit_points, predict
from laar_lab.sim.engine.profile import EngineProfile
from laar_lab.sim.fleet import BLOCK_TOKENS

RANK_CORRELATION = 0.9
_LEAST_TOKENS = 2048  # for the longest prompt; below this, overheads dominate
_SPARE_TOKENS = 64  # reserved in the context for the answer


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSettings:
    """Settings of a measurement.

    Args:
        url: URL of the endpoint, with or without ``/v1``.
        model: model to request; None for the first model listed.
        longest: tokens of the longest prompt.
        max_num_batched_tokens: the engine's setting; no endpoint reports it.
        repeat: number of measurements of each point, of which the fastest is used.
        tolerance: largest relative error of the model that passes the check.
        headers: HTTP headers sent with each request.
    """

    url: str
    model: str | None = None
    longest: int = 8000
    max_num_batched_tokens: int = 2048
    repeat: int = 8
    tolerance: float = 0.25
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A profile, the measurements it was fitted to, and the report on it."""

    profile: EngineProfile
    longest: int
    report: Report


def fit_engine(settings: FitSettings, progress: Callable[[int, int], None]) -> Fitted:
    """Measure the endpoint, fit the engine model and check the fit.

    Args:
        settings: settings of the measurement.
        progress: called with the number of measurements done and their total.

    Raises:
        SettingError: the endpoint does not answer, or its context is too short.
    """
    return asyncio.run(_fit_engine(settings, progress))


async def _fit_engine(settings: FitSettings, progress: Callable[[int, int], None]) -> Fitted:
    url = settings.url.rstrip("/").removesuffix("/v1")
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, headers=settings.headers) as session:
        facts, context = await facts_of(
            session, url, settings.model, settings.max_num_batched_tokens
        )
        longest = min(settings.longest, context - _SPARE_TOKENS) if context else settings.longest
        if longest < _LEAST_TOKENS:
            raise SettingError(
                f"--longest {longest}: too short for a fit; use {_LEAST_TOKENS} or more, and an "
                "engine with that context length"
            )
        if facts.block_size % BLOCK_TOKENS:
            raise SettingError(
                f"{url}: KV blocks of {facts.block_size} tokens; the lab needs a multiple of "
                f"{BLOCK_TOKENS}"
            )
        named, checked = fit_points(longest), check_points(longest)
        points = [*named.values(), *(point for group in checked.values() for point in group)]
        done = 0

        def count() -> None:
            nonlocal done
            done += 1
            progress(done, len(points) * settings.repeat)

        seen = await measure(
            session, url, facts.model, points, repeat=settings.repeat, progress=count
        )
    profile = fit({name: seen[point] for name, point in named.items()}, longest, facts)
    groups = {group: _rows(profile, of, seen) for group, of in checked.items()}
    report = _report(profile, groups, settings.tolerance)
    if facts.others:
        remark = (
            f"{facts.others} other requests were in progress: measure an engine without traffic"
        )
        report = replace(report, remarks=[remark])
    return Fitted(profile=profile, longest=longest, report=report)


@dataclass(frozen=True, slots=True)
class _Row:
    """A measured time and the model's prediction."""

    point: Point
    name: str
    seen: Seen
    measured_s: float
    ours_s: float

    @property
    def ratio(self) -> float:
        return self.ours_s / self.measured_s


def _rows(profile: EngineProfile, points: list[Point], seen: Mapping[Point, Seen]) -> list[_Row]:
    rows = []
    for point in points:
        measured = seen[point]
        ours = predict(profile, point, measured.gap_s)
        name = "alone" if point.together == 1 else f"first of {point.together}"
        rows.append(_Row(point, name, measured, measured.ttft_s[0], ours.ttft_s[0]))
        if point.together > 1:
            last = f"last of {point.together}"
            rows.append(_Row(point, last, measured, measured.ttft_s[-1], ours.ttft_s[-1]))
    return rows


def _report(profile: EngineProfile, groups: Mapping[str, list[_Row]], tolerance: float) -> Report:
    table: list[tuple[Value, ...]] = [
        (
            group,
            row.point.prompt_tokens,
            row.point.cached_tokens,
            "" if row.seen.cached_tokens is None else row.seen.cached_tokens,
            row.name,
            row.measured_s * 1e3,
            row.ours_s * 1e3,
            row.ratio,
        )
        for group, rows in groups.items()
        for row in rows
    ]
    columns = ("against", "prompt", "sent before", "found", "prompts", "measured ms", "model ms")
    return Report(
        tables=[
            Table(
                title=f"{profile.name}: constants, microseconds",
                columns=("constant", "us"),
                rows=[(name, value * 1e6) for name, value in _constants(profile).items()],
                digits=4,
            ),
            Table(
                title="TTFT at points outside the fit",
                columns=(*columns, "model / measured"),
                rows=table,
            ),
        ],
        checks=[_check(group, rows, tolerance) for group, rows in groups.items()],
    )


def _check(group: str, rows: list[_Row], tolerance: float) -> Check:
    worst = max((row.ratio for row in rows), key=lambda ratio: abs(ratio - 1.0))
    ranks = spearmanr([row.measured_s for row in rows], [row.ours_s for row in rows])
    return Check(
        claim=f"TTFT against {group}: within {tolerance:.0%} at each point, in the same order",
        held=bool(abs(worst - 1.0) <= tolerance and ranks.statistic >= RANK_CORRELATION),
        seen=f"worst model / measured {worst:.2f}, rank correlation {ranks.statistic:.2f}",
    )


def _constants(profile: EngineProfile) -> dict[str, float]:
    """Return the fitted constants in seconds."""
    settings = profile.settings
    return {
        **asdict(cast("LinearCost", profile.cost)),
        "intake_s": settings.intake_s,
        "intake_s_per_token": settings.intake_s_per_token,
    }


def check_out(path: Path | None) -> None:
    """Reject an output file that can't be written or named in a fleet, before measuring anything.

    Raises:
        SettingError: the name does not end in ``.yaml``, or its directory is missing.
    """
    if path and path.suffix != ".yaml":
        raise SettingError(f"--out {path}: must end in .yaml, or no fleet file can name it")
    if path and not path.parent.is_dir():
        raise SettingError(f"--out {path}: no directory {path.parent}")


def write_profile(fitted: Fitted, path: Path) -> None:
    """Write the profile to a file that a fleet file and `laar sim-endpoint` can name."""
    profile, settings = fitted.profile, fitted.profile.settings
    source = f"fitted to a running engine, prompts of up to {fitted.longest} tokens"
    linear = {
        field.name: {"value": getattr(profile.cost, field.name), "source": source}
        for field in fields(LinearCost)
    }
    kept = ("num_blocks", "block_size", "max_num_batched_tokens", "intake_s", "intake_s_per_token")
    entry = {"linear": linear, "settings": {name: getattr(settings, name) for name in kept}}
    path.write_text(yaml.safe_dump({profile.name: entry}, sort_keys=False), "utf-8")
