"""All settings, and loading them from the settings file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from annotated_types import MaxLen
from pydantic import model_validator

from laar.datalayer.document import Place, line_of, read_with_lines
from laar.datalayer.endpoints_file import Endpoints, load_endpoints
from laar.datalayer.files import Stamp, stamp_of
from laar.datalayer.kubernetes.settings import KubernetesSource
from laar.declaring import Applies
from laar.errors import SettingError
from laar.fleet.membership import EndpointSpec
from laar.protocol.stream import StreamSettings
from laar.settings.context import ContextSection
from laar.settings.listening import EnvoySection, Listen, Shutdown
from laar.settings.reading import Bodies, Decisions, Headers, Readings
from laar.settings.removed import REMOVED
from laar.settings.routing import Accuracy, Flow, HealthSection, Prefix, Routing
from laar.settings.section import Section, leaves, part, value_at
from laar.settings.share import Share


class Settings(Section):
    """All settings of laar."""

    endpoints: Annotated[Endpoints, Applies.AT_ONCE] = ()
    """Endpoints listed here, for a fleet that rarely changes."""
    endpoints_file: Annotated[Path | None, Applies.AFTER_RESTART] = None
    """YAML file of endpoints, reloaded whenever it changes."""
    kubernetes: Annotated[tuple[KubernetesSource, ...], Applies.AFTER_RESTART, MaxLen(64)] = ()
    """Pods to use as endpoints, by InferencePool or by labels. Several entries form one fleet."""
    listen: Listen = Listen()
    routing: Routing = Routing()
    accuracy: Accuracy = Accuracy()
    prefix: Prefix = Prefix()
    readings: Readings = Readings()
    bodies: Bodies = Bodies()
    headers: Headers = Headers()
    health: HealthSection = HealthSection()
    flow: Flow = Flow()
    context: ContextSection = ContextSection()
    decisions: Decisions = Decisions()
    share: Share = Share()
    envoy: EnvoySection = EnvoySection()
    shutdown: Shutdown = Shutdown()

    def listed(self) -> list[EndpointSpec]:
        """Return the endpoints listed in the settings.

        Raise `SettingError` if a file that an endpoint refers to can't be read.
        """
        found = []
        for index, endpoint in enumerate(self.endpoints):
            try:
                found.append(endpoint.spec())
            except SettingError as fault:
                raise SettingError(str(fault), setting=f"endpoints[{index}]") from None
        return found

    def declared(self) -> list[EndpointSpec]:
        """Return the endpoints listed in the settings and in the endpoints file.

        Raise `SettingError` if a file can't be read, or is invalid.
        """
        file = self.endpoints_file
        return [*self.listed(), *(load_endpoints(file) if file is not None else ())]

    @property
    def stream(self) -> StreamSettings:
        """Return the stream settings, from several sections."""
        return part(StreamSettings, self.bodies, self.flow, self.headers, self.prefix, self.routing)

    @model_validator(mode="after")
    def _has_endpoints(self) -> Settings:
        if not (self.endpoints or self.endpoints_file or self.kubernetes):
            raise ValueError("no endpoints: give `endpoints`, `endpoints_file` or `kubernetes`")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Complete settings, and the origin of each.

    Args:
        path: path of the settings file; None without a file.
        origins: ``default`` or ``FILE:LINE``, by the setting's path.
        stamps: stamps of the files that affect the settings, taken before reading.
        lines: line numbers of the keys in the settings file.
    """

    settings: Settings
    path: Path | None = None
    origins: Mapping[str, str] = field(default_factory=dict)
    stamps: Mapping[Path, Stamp] = field(default_factory=dict)
    lines: Mapping[Place, int] = field(default_factory=dict)

    def at(self, setting: str) -> str:
        """Return ``FILE:LINE: SETTING: ``, or ``FILE: SETTING: `` if the key is not in the file."""
        parts = setting.replace("]", "").replace("[", ".").split(".")
        place: Place = tuple(int(part) if part.isdigit() else part for part in parts)
        written = any(place[: count + 1] in self.lines for count in range(len(place)))
        where = f"{self.path}:{line_of(place, self.lines)}" if written else str(self.path)
        return f"{where}: {setting}: "

    @contextmanager
    def located(self) -> Iterator[None]:
        """Add file and line to errors that name a setting."""
        try:
            yield
        except SettingError as error:
            if self.path is None or not error.setting:
                raise
            text = str(error).removeprefix(f"{error.setting}: ")
            raise SettingError(self.at(error.setting) + text) from None


def load(path: Path) -> Loaded:
    """Read the settings; raise `SettingError` with one line per error."""
    stamps = {path: stamp_of(path)}
    if not path.exists():
        raise SettingError(
            f"{path}: can't be read: no such file; `laar init --endpoint "
            "http://HOST:PORT` creates one from running engines, and --config selects another"
        )
    settings, lines = read_with_lines(path, Settings, REMOVED)
    artifact = settings.accuracy.capability
    for file in (artifact, *(one.key_file for one in settings.endpoints)):
        if file is not None:
            stamps[file] = stamp_of(file)
    origins = {name: _origin(settings, name, path, lines) for name, _ in leaves(Settings)}
    return Loaded(settings=settings, path=path, origins=origins, stamps=stamps, lines=lines)


def _origin(settings: Settings, name: str, path: Path, lines: Mapping[Place, int]) -> str:
    *above, own = name.split(".")
    section = value_at(settings, above[0]) if above else settings
    if own not in section.model_fields_set:
        return "default"
    return f"{path.name}:{line_of((*above, own), lines)}"
