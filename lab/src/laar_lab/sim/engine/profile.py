"""Read engine profiles from data files, and build engines from them.

`sim/data/` has three files: `engine-hardware.yaml` and `engine-models.yaml` hold constants, each
with its source, and `engine-profiles.yaml` combines them with parallel degrees and settings into
the engines that experiments name. A profile without hardware has a linear cost. A user's file with
a single profile, as written by `laar lab fit-engine`, is accepted too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TypeVar, cast

import yaml
from pydantic import TypeAdapter, ValidationError

from laar.datalayer.document import parse_yaml
from laar.errors import SettingError, unknown
from laar_lab.sim.engine.cost import CostModel, LinearCost
from laar_lab.sim.engine.interface import Engine
from laar_lab.sim.engine.parallel import ParallelEngine
from laar_lab.sim.engine.roofline import HardwareProfile, ModelProfile, RooflineCost
from laar_lab.sim.engine.settings import EngineSettings
from laar_lab.sim.engine.simulated import SimulatedEngine

DATA = Path(__file__).parent.parent / "data"

_T = TypeVar("_T")
_Entry = Mapping[str, object]
_PARALLEL = {"tensor", "stages", "kv_parallel"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """An engine's name, the cost of its iterations, and its settings."""

    name: str
    cost: CostModel
    settings: EngineSettings


def build_engine(profile: EngineProfile) -> Engine:
    """Return a fresh engine.

    Raises:
        SettingError: the scheduler or slack order is unknown, or `parallel` lacks a linear cost.
    """
    kind = ParallelEngine if profile.settings.scheduler == "parallel" else SimulatedEngine
    return kind(profile.cost, profile.settings)


def slowed(profile: EngineProfile, factor: float) -> EngineProfile:
    """Return the same engine on a device where everything takes `factor` times as long.

    Raises:
        SettingError: the cost is not linear but derived from the peaks of the hardware.
    """
    if factor == 1.0:
        return profile
    if not isinstance(profile.cost, LinearCost):
        raise SettingError(f"{profile.name}: `slowdown` needs a profile with a `linear` cost")
    times = {name: factor * seconds for name, seconds in asdict(profile.cost).items()}
    return replace(profile, cost=LinearCost(**times))


def load_hardware(name: str, data: Path = DATA) -> HardwareProfile:
    """Return an accelerator; the packaged file has `a100`, `h100` and `l40s`.

    Raises:
        SettingError: there is no such entry, or a constant is missing, unknown or out of range.
    """
    return _sourced(data / "engine-hardware.yaml", name, HardwareProfile)


def load_model(name: str, data: Path = DATA) -> ModelProfile:
    """Return a model's shape.

    Raises:
        SettingError: as for `load_hardware`.
    """
    return _sourced(data / "engine-models.yaml", name, ModelProfile)


def profile_names(data: Path = DATA) -> tuple[str, ...]:
    """Return the profile names that `load_profile` accepts."""
    return tuple(_read(data / "engine-profiles.yaml"))


def load_profile(name: str, data: Path = DATA) -> EngineProfile:
    """Return the engine with that name, or the one in a file if the name ends in ``.yaml``.

    Raises:
        SettingError: there is no such entry, or it is invalid; the message names the file and
            constant.
    """
    file = data / "engine-profiles.yaml"
    if name.endswith(".yaml"):
        file = Path(name)
        entries = _read(file)
        if not isinstance(entries, dict) or len(entries) != 1:
            raise SettingError(f"{file}: must hold one profile, under its name")
        name = str(next(iter(entries)))
    entry = dict(_entry(file, name))
    entry.pop("about", None)
    where = f"{file.name}: {name}"
    settings = dict(cast("_Entry", entry.pop("settings", {})))
    if "linear" in entry:
        linear = _constants(where + ".linear", entry.pop("linear"))
        cost: CostModel = _valid(where + ".linear", linear, LinearCost)
    else:
        cost = _roofline(where, entry, data)
        settings.setdefault("num_blocks", _blocks(cost, settings))
    if entry:
        raise SettingError(f"{where}: unknown `{next(iter(entry))}`; remove it")
    return EngineProfile(
        name=name, cost=cost, settings=_valid(where + ".settings", settings, EngineSettings)
    )


def _roofline(where: str, entry: dict[str, object], data: Path) -> RooflineCost:
    parts = {}
    for part in ("hardware", "model"):
        if part not in entry:
            raise SettingError(f"{where}: `{part}` is missing; add it, or a `linear` cost")
        parts[part] = str(entry.pop(part))
    degrees = {key: entry.pop(key) for key in _PARALLEL & entry.keys()}
    return RooflineCost(
        load_hardware(parts["hardware"], data),
        load_model(parts["model"], data),
        **_valid(where, degrees, dict[str, int]),
    )


def _blocks(cost: RooflineCost, settings: _Entry) -> int:
    size = settings.get("block_size", 16)
    return cost.kv_tokens() // size if isinstance(size, int) and size > 0 else 1


@lru_cache(maxsize=16)  # the three files, and those of tests
def _read(file: Path) -> Mapping[str, _Entry]:
    try:
        return cast("Mapping[str, _Entry]", parse_yaml(file.read_text("utf-8")))
    except (OSError, yaml.YAMLError) as error:
        raise SettingError(f"{file}: can't be read: {error}") from error


def _entry(file: Path, name: str) -> _Entry:
    entries = _read(file)
    if name not in entries:
        raise SettingError(f"{file.name}: {unknown('entry', name, entries)}")
    return entries[name]


def _constants(where: str, entry: object) -> dict[str, object]:
    """Return the values, each of which must come with its source."""
    values: dict[str, object] = {}
    for key, item in cast("_Entry", entry).items():
        if not isinstance(item, dict) or not item.get("source") or "value" not in item:
            raise SettingError(f"{where}: `{key}` needs a `value` and its `source`")
        values[key] = item["value"]
    return values


def _sourced(file: Path, name: str, kind: type[_T]) -> _T:
    where = f"{file.name}: {name}"
    return _valid(where, {"name": name, **_constants(where, _entry(file, name))}, kind)


def _valid(where: str, values: object, kind: type[_T]) -> _T:
    """Return `values` as `kind`; an error names the file and the constant."""
    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        fault = error.errors()[0]
        constant = ".".join(str(part) for part in fault["loc"])
        if fault["type"] == "missing":
            raise SettingError(
                f"{where}: `{constant}` is missing; add it with its source"
            ) from error
        raise SettingError(f"{where}: `{constant}`: {fault['msg']}") from error
