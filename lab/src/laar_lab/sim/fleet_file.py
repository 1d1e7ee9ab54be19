"""The fleet file that `laar lab replay --fleet` reads.

    endpoints:
      - {name: "near:8000", model: m, profile: qwen2.5-7b-a100, rtt_ms: 2, jitter: 0.1}
    scrape_interval_s: 1

A profile is a name in `engine-profiles.yaml`, or a file written by `laar lab fit-engine`, relative
to the fleet file. `settings` overrides other settings of an engine, and `slowdown` makes an engine
with a linear cost slower by a factor (for a mixed fleet that serves one model).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from laar.datalayer.document import parse_yaml
from laar.errors import SettingError
from laar_lab.policy_text import parse_policy
from laar_lab.sim.engine import EngineProfile, EngineSettings, load_profile, slowed
from laar_lab.sim.fleet import FleetSettings, LinkProfile, Site

MAX_FILE_BYTES = 4 << 20
"""Enough for thousands of endpoints."""

_COARSE_TOKENS = 128
_DIRECTORY = "directory of the fleet file"
_Times = Annotated[float, Field(ge=0, le=60_000)]
_Interval = Annotated[float, Field(gt=0, le=3600)]
_Share = Annotated[float, Field(ge=0, le=1)]
_USUAL = FleetSettings()


class _Endpoint(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1)]
    model: str = "model"
    profile: str
    settings: dict[str, object] = {}
    slowdown: Annotated[float, Field(gt=0, le=1000)] = 1.0
    rtt_ms: _Times = 0.5
    jitter: Annotated[float, Field(ge=0, le=2)] = 0.0
    spell_rtt_ms: _Times = 0.0
    spell_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    spell_s: _Interval = 20.0

    @field_validator("profile")
    @classmethod
    def _own_file(cls, profile: str, info: ValidationInfo) -> str:
        directory = (info.context or {}).get(_DIRECTORY, Path())
        return str(directory / profile) if profile.endswith(".yaml") else profile


class FleetFile(BaseModel):
    """Endpoints, and how often the picker scrapes and probes them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    endpoints: Annotated[list[_Endpoint], Field(min_length=1)]
    scrape_interval_s: _Interval = _USUAL.scrape_interval_s
    probe_interval_s: _Interval = _USUAL.probe_interval_s
    sample_answers: _Share = _USUAL.sample_answers

    def sites(self) -> list[Site]:
        """Return the endpoints as sites."""
        return [
            Site(
                name=end.name,
                model=end.model,
                engine=_engine(end),
                link=LinkProfile(
                    rtt_s=end.rtt_ms / 1e3,
                    jitter=end.jitter,
                    spell_rtt_s=end.spell_rtt_ms / 1e3,
                    spell_share=end.spell_share,
                    spell_s=end.spell_s,
                ),
            )
            for end in self.endpoints
        ]

    def picker(self, policy: str) -> FleetSettings:
        """Return the picker's settings for a policy, `name` or `name:parameter=value,...`."""
        name, parameters = parse_policy(policy)
        return FleetSettings(
            policy=name,
            parameters=parameters,
            scrape_interval_s=self.scrape_interval_s,
            probe_interval_s=self.probe_interval_s,
            sample_answers=self.sample_answers,
        )


def _engine(end: _Endpoint) -> EngineProfile:
    profile = slowed(load_profile(end.profile), end.slowdown)
    if not end.settings:
        return profile
    known = {name: getattr(profile.settings, name) for name in profile.settings.__slots__}
    settings = TypeAdapter(EngineSettings).validate_python(known | end.settings)
    return replace(profile, settings=settings)


def read_fleet(path: Path) -> FleetFile:
    """Read a fleet file.

    Raises:
        SettingError: the file can't be read or is invalid; the message has one line per error.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise SettingError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB; is it a fleet?")
        described = parse_yaml(path.read_text("utf-8"))
        fleet = FleetFile.model_validate(described, context={_DIRECTORY: path.parent})
        fleet.sites()
    except ValidationError as fault:
        lines = [
            f"{path}: {'.'.join(str(part) for part in error['loc']) or 'file'}: {error['msg']}"
            for error in fault.errors()
        ]
        raise SettingError("\n".join(lines)) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as fault:
        raise SettingError(f"{path}: {fault}") from None
    return fleet


def fleet_of(engines: Sequence[str], endpoints: int) -> FleetFile:
    """Return a fleet of one model, next to the picker, whose endpoints use these engines in turn.

    Args:
        engines: profiles, or files that end in ``.yaml``; `name@2.5` is 2.5 times slower.
        endpoints: number of endpoints.

    Raises:
        SettingError: a profile does not exist, or can't be slowed down.
    """
    ends = []
    for number in range(endpoints):
        profile, _, slower = engines[number % len(engines)].partition("@")
        try:
            slowdown = float(slower or 1)
        except ValueError:
            raise SettingError(
                f"engine `{profile}@{slower}`: the factor after @ is not a number"
            ) from None
        own = load_profile(profile).settings
        # The same memory in larger blocks takes an eighth of the work; a prefix loses half a block.
        tokens = own.num_blocks * own.block_size
        settings = {"block_size": _COARSE_TOKENS, "num_blocks": tokens // _COARSE_TOKENS}
        ends.append(
            {
                "name": f"endpoint-{number}",
                "profile": profile,
                "slowdown": slowdown,
                "settings": settings if own.block_size < _COARSE_TOKENS else {},
            }
        )
    try:
        fleet = FleetFile.model_validate({"endpoints": ends})
    except ValidationError as fault:
        raise SettingError(f"engines {', '.join(engines)}: {fault.errors()[0]['msg']}") from None
    fleet.sites()
    return fleet
