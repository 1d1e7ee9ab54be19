"""The Envoy that `laar serve --with-envoy` runs with the picker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from pydantic import RootModel

from laar.datalayer.document import read_document
from laar.datalayer.endpoints_file import split_address
from laar.envoy.bootstrap import render
from laar.envoy.options import envoy_options
from laar.envoy.process import find_binary, validate
from laar.errors import SettingError
from laar.settings import Loaded, Settings
from laar.settings.ignored import endpoint_cas

_REMEDY = "correct it, or delete it to have it rendered from the settings"


def bootstrap_beside(loaded: Loaded, config: Path) -> Mapping[str, object]:
    """Return the bootstrap: the envoy.yaml next to the settings, or one rendered from them.

    Raises:
        SettingError: Envoy is not installed, would not learn the endpoints or could not reach the
            picker, or its file is unusable.
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


def _must_fit(bootstrap: Mapping[str, Any], settings: Settings, path: Path) -> None:
    """Check that a bootstrap file, which may be older or written elsewhere, fits the settings.

    Raises:
        SettingError: laar could not monitor this Envoy, or Envoy would use a different picker or
            different endpoints, or could not verify https endpoints.
    """
    eds = settings.envoy.eds_file
    if not bootstrap.get("admin"):
        raise SettingError(
            f"{path}: no `admin`: laar needs this port to check that Envoy is ready, and to drain "
            f"it; add it on loopback"
        )
    sources = _all(bootstrap, "path_config_source")
    files = [str(source["path"]) for source in sources if "path" in source]
    if eds is not None and files and eds.resolve() not in [Path(file).resolve() for file in files]:
        raise SettingError(
            f"{path}: Envoy would read its endpoints from {', '.join(files)}, but the picker "
            f"writes them to {eds} (envoy.eds_file); {_REMEDY}"
        )
    trusted = {match.get("ca") for match in _all(bootstrap, "match")}
    if missing := [ca for ca in endpoint_cas(settings) if ca not in trusted]:
        raise SettingError(
            f"{path}: Envoy would not trust {', '.join(missing)} (ca_file of https endpoints), so "
            f"it could not reach these endpoints; {_REMEDY}"
        )
    picker = settings.listen.ext_proc
    clusters = [found.get("clusters") for found in _all(bootstrap, "static_resources")]
    addresses = list(_all(clusters, "socket_address"))
    if addresses and not any(_may_reach(address, picker) for address in addresses):
        raise SettingError(
            f"{path}: no cluster has the picker's address {picker} (listen.ext_proc), so requests "
            f"would bypass it; {_REMEDY}"
        )


def _may_reach(address: Mapping[str, Any], listening: str) -> bool:
    """Return whether an address may lead to a listener; any name may if the port is the same."""
    host, port = split_address(listening)
    if address.get("port_value") != port:
        return False
    try:
        listens_at, dialled_at = ip_address(host), ip_address(address.get("address", ""))
    except ValueError:
        return True
    return listens_at.is_unspecified or listens_at == dialled_at


def _all(value: Any, key: str) -> Iterator[Any]:
    """Yield the values of a key at any depth."""
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in below:
        yield from _all(item, key)
    if isinstance(value, dict) and isinstance(value.get(key), dict):
        yield value[key]
