"""Find settings that are valid but have no effect, or an unintended effect.

`laar check` prints the remarks and `laar serve` logs them. No network or clock is needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

from laar.datalayer.endpoints_file import is_loopback
from laar.errors import SettingError, unknown
from laar.fleet.membership import EndpointSpec
from laar.settings.settings import Loaded, Settings

_QUEUE = ("long_tokens", "max_prefill_s", "max_requests", "min_hold_s", "order", "patience")
"""Settings of `flow` for its queue; the others also serve sessions, tenants and metrics."""

_WITHOUT: Mapping[str, tuple[tuple[str, ...], Callable[[Settings], bool]]] = {
    "flow.enabled": (tuple(f"flow.{name}" for name in _QUEUE), lambda s: s.flow.enabled),
    "health.enabled": (("health.",), lambda s: s.health.breaker.enabled),
    "share.url": (("share.username", "share.password_file"), lambda s: s.share.url is not None),
    # The store keeps the snapshots.
    "share.url: null": (("share.snapshot_file",), lambda s: s.share.url is None),
    "share.url: rediss://...": (
        ("share.ca_file", "share.cert_file", "share.key_file"),
        lambda s: str(s.share.url).startswith("rediss:"),
    ),
    "routing.mode: enforce": (
        ("routing.enforce_share",),
        lambda s: s.routing.enforcement.mode == "enforce",
    ),
}
"""What settings with the given prefixes require, with a test of the requirement."""


def remarks(loaded: Loaded) -> Iterator[str]:
    """Yield a message for each setting that is ignored: file, line, key and fix."""
    settings = loaded.settings
    for name, origin in loaded.origins.items():
        if origin == "default":
            continue
        for needed, (prefixes, given) in _WITHOUT.items():
            if name.startswith(prefixes) and name != needed and not given(settings):
                yield f"{loaded.at(name)}has no effect without {needed}; set that, or remove this"
    yield from _aliases(loaded)
    if settings.decisions.viewers_token_file is None and not is_loopback(settings.listen.admin):
        yield (
            f"{loaded.at('listen.admin')}{settings.listen.admin} is open to the network, so the "
            "page, /explain and /config are refused without decisions.viewers_token_file; set that"
        )


def _declared(settings: Settings) -> list[EndpointSpec]:
    """Return the declared endpoints; none if a file is unusable, which is an error elsewhere."""
    with contextlib.suppress(SettingError):
        return settings.declared()
    return []


def endpoint_cas(settings: Settings) -> tuple[str, ...]:
    """Return the CA files that Envoy needs to verify these endpoints."""
    found = {spec.way.ca for spec in _declared(settings)}
    return tuple(sorted(ca for ca in found if ca is not None))


def _aliases(loaded: Loaded) -> Iterator[str]:
    served = dict.fromkeys(model for spec in _declared(loaded.settings) for model in spec.models)
    if loaded.settings.kubernetes or not served:
        return  # pods report their models once found
    routing = loaded.settings.routing
    for model in routing.asking.modes:
        if model not in served:
            yield f"{loaded.at(f'routing.modes.{model}')}{unknown('model', model, served)}"
    for alias, models in routing.director.aliases.items():
        for model in models:
            if model not in served:
                yield (
                    f"{loaded.at(f'routing.aliases.{alias}')}{unknown('model', model, served)}; "
                    "the alias omits it until an endpoint serves it"
                )
