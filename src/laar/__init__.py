"""laar: an Envoy endpoint picker that sends requests where a correct answer is expected soonest.

The names in `__all__` here, and all of `laar.testing`, are the public API: names and signatures
are pinned by a test; changes are noted in the changelog. Everything else may change at any time.
Names are imported on first use, so that `import laar` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from laar.client import (
        Attempt,
        Outcome,
        report_outcome,
        report_outcome_sync,
        until_correct,
        until_correct_sync,
    )
    from laar.core.interfaces import Filter, Picker, Scorer, View
    from laar.core.plugin import Admitted, Core, Meter, Part, Plugin
    from laar.core.policy import Policy
    from laar.errors import LaarError, RequestError, SettingError
    from laar.fleet.endpoints import EndpointTable, Floats, Mask, Slots
    from laar.fleet.membership import EndpointSpec
    from laar.request import Api, Request

    __version__: str

__all__ = [
    "Admitted",
    "Api",
    "Attempt",
    "Core",
    "EndpointSpec",
    "EndpointTable",
    "Filter",
    "Floats",
    "LaarError",
    "Mask",
    "Meter",
    "Outcome",
    "Part",
    "Picker",
    "Plugin",
    "Policy",
    "Request",
    "RequestError",
    "Scorer",
    "SettingError",
    "Slots",
    "View",
    "__version__",
    "report_outcome",
    "report_outcome_sync",
    "until_correct",
    "until_correct_sync",
]

_HOMES = {
    "client": (
        *("Attempt", "Outcome", "report_outcome", "report_outcome_sync"),
        *("until_correct", "until_correct_sync"),
    ),
    "fleet.endpoints": ("EndpointSpec", "EndpointTable", "Floats", "Mask", "Slots"),
    "core.interfaces": ("Filter", "Picker", "Scorer", "View"),
    "core.plugin": ("Admitted", "Core", "Meter", "Part", "Plugin"),
    "core.policy": ("Policy",),
    "request": ("Api", "Request"),
    "errors": ("LaarError", "RequestError", "SettingError"),
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("laar")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"laar.{home}"), name)
    raise AttributeError(f"module 'laar' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
