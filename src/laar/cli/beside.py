"""The Envoy that `laar serve --with-envoy` runs with the picker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import RootModel

from laar.datalayer.document import read_document
from laar.datalayer.endpoints_file import is_ip
from laar.envoy.bootstrap import render
from laar.envoy.options import envoy_options
from laar.envoy.process import find_binary, validate
from laar.errors import SettingError
from laar.settings import Loaded, Settings


def bootstrap_beside(loaded: Loaded, config: Path) -> Mapping[str, object]:
    """Return the bootstrap: the envoy.yaml next to the settings, or one rendered from them.

    Raise `SettingError` if Envoy is not installed, would not learn the endpoints or could not reach
    the picker, or its file is unusable.
    """
    settings = loaded.settings
    if settings.envoy.eds_file is None:
        raise SettingError(
            f"{loaded.at('envoy.eds_file')}--with-envoy needs it, for example `eds_file: "
            "run/endpoints.json`"
        )
    written = config.with_name("envoy.yaml")
    if settings.listen.tls is not None and not written.exists():
        raise SettingError(
            f"{loaded.at('listen.tls')}the Envoy that --with-envoy renders uses no TLS to its "
            "picker, which is on the same machine; remove listen.tls, or write an envoy.yaml "
            f"next to {config.name}: laar envoy --shape sidecar --picker-ca FILE --eds-file FILE"
        )
    find_binary()
    if written.exists():
        bootstrap = read_document(written, RootModel[dict[str, object]]).root
        _must_fit(bootstrap, settings, written)
        return bootstrap
    return render("sidecar", envoy_options(settings))


def envoy_faults(loaded: Loaded, config: Path) -> list[str]:
    """Return the errors that would keep Envoy from starting, each with its fix.

    Ports are not checked: Envoy reports any it can't listen on, and `laar serve` prints that.
    """
    try:
        bootstrap = bootstrap_beside(loaded, config)
        eds = loaded.settings.envoy.eds_file
        assert eds is not None  # checked by `bootstrap_beside`
        validate(bootstrap, eds)
    except SettingError as fault:
        return [str(fault)]
    return []


def _must_fit(bootstrap: Mapping[str, object], settings: Settings, path: Path) -> None:
    """Check that a bootstrap file, which may be older or written elsewhere, fits the settings.

    Raise `SettingError` if laar could not monitor this Envoy, or Envoy would use a different picker
    or different endpoints, or could not verify https endpoints.
    """
    if not bootstrap.get("admin"):
        raise SettingError(
            f"{path}: no `admin`: laar needs this port to check that Envoy is ready, and to drain "
            f"it; add it on loopback"
        )
    options, found = envoy_options(settings), list(_mappings(bootstrap))
    ((host, port),) = options.picker_addresses
    # The bootstrap may reach the picker by a name, as TLS requires, and a wildcard at any address.
    is_any = options.picker != settings.listen.ext_proc or not is_ip(host)
    found += [{**m, "address": host} for m in found if is_any or not is_ip(str(m.get("address")))]
    needed: list[tuple[str, Mapping[str, object], str]] = [
        ("envoy.eds_file", {"path": options.eds_path}, "read its endpoints elsewhere"),
        ("listen.ext_proc", {"address": host, "port_value": port}, "bypass this picker"),
        *(("ca_file", {"ca": ca}, "not reach https endpoints") for ca in options.endpoint_cas),
    ]
    for setting, value, effect in needed:
        if not any(value.items() <= mapping.items() for mapping in found):
            missing = ", ".join(f"{name}: {text}" for name, text in value.items())
            raise SettingError(
                f"{path}: `{missing}` ({setting} in the settings) is missing, so Envoy may {effect}"
                "; write it as `laar envoy` does, or delete the file: laar then renders its own"
            )


def _mappings(value: object) -> Iterator[Mapping[str, object]]:
    """Yield all mappings in a document."""
    if isinstance(value, dict):
        yield value
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in below:
        yield from _mappings(item)
