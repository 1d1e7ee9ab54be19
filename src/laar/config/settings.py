"""The settings file: one YAML document, every setting with unit, default and reason.

Unknown keys are errors, faults are named by file, line and key, and all of them are shown at once.
The field descriptions are the reference: the documentation and the editors' JSON schema are made
from them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from laar.config.context import Context, ContextRoute
from laar.config.flow import Flow
from laar.config.listening import EnvoySection, Listen, Shutdown, Tls
from laar.config.reading import Bodies, Decisions, Readings
from laar.config.routing import Accuracy, Prefix, Routing, Tuning
from laar.config.section import Section
from laar.datalayer.document import read_document
from laar.datalayer.endpoints_file import Endpoint
from laar.datalayer.kubernetes import KubernetesSource
from laar.errors import SettingError

__all__ = ["Accuracy", "Context", "ContextRoute", "Settings", "Tls", "Tuning", "load_settings"]

MAX_FILE_BYTES = 4 << 20
"""Room for ten thousand endpoints written into the settings themselves."""


class Settings(Section):
    """Everything laar can be told."""

    endpoints: tuple[Endpoint, ...] = Field(
        (), description="Endpoints written here; for a fleet that does not change."
    )
    endpoints_file: Path | None = Field(
        None, description="YAML file of endpoints, read again whenever it changes."
    )
    kubernetes: tuple[KubernetesSource, ...] = Field(
        (),
        max_length=64,
        description="Pods as endpoints, of InferencePools or by labels; several make one fleet.",
    )
    listen: Listen = Listen()
    routing: Routing = Routing()
    accuracy: Accuracy = Accuracy()
    prefix: Prefix = Prefix()
    readings: Readings = Readings()
    bodies: Bodies = Bodies()
    flow: Flow = Flow()
    context: Context = Context()
    tuner: Tuning = Tuning()
    decisions: Decisions = Decisions()
    envoy: EnvoySection = EnvoySection()
    shutdown: Shutdown = Shutdown()

    @model_validator(mode="after")
    def _has_endpoints(self) -> Settings:
        if not (self.endpoints or self.endpoints_file or self.kubernetes):
            raise ValueError("no endpoints: give `endpoints`, `endpoints_file` or `kubernetes`")
        return self


def load_settings(path: Path) -> Settings:
    """Reads the settings; relative paths in them are relative to the file.

    Raises:
        SettingError: one line for each fault.
    """
    settings = read_document(path, Settings, max_bytes=MAX_FILE_BYTES)
    base = path.resolve().parent

    def absolute(value: Any) -> Any:
        if isinstance(value, Path):
            return base / value
        if isinstance(value, Section):
            changed = {name: absolute(getattr(value, name)) for name in type(value).model_fields}
            return value.model_copy(update=changed)
        return value

    resolved: Settings = absolute(settings)
    state = resolved.accuracy.state_file
    if state is not None and not state.parent.is_dir():
        raise SettingError(
            f"{path}: accuracy.state_file: {state.parent} is not a directory; create it"
        )
    if resolved.tuner.enabled and resolved.routing.policy != "laar":
        raise SettingError(
            f"{path}: tuner.enabled: only the policy `laar` is tuned, and routing.policy is "
            f"`{resolved.routing.policy}`"
        )
    _ = resolved.routing.weights  # faults of the weights file are told at the start
    artifact = resolved.accuracy.capability
    if artifact is not None and not artifact.is_file():
        raise SettingError(f"{path}: accuracy.capability: {artifact} is not a file; run `laar fit`")
    return resolved
