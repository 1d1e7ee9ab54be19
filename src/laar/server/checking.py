"""Find the errors that would keep `laar serve` from starting, without serving.

The picker is assembled as at startup, but its ports are bound only briefly.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from functools import partial

from laar.datalayer.endpoints_file import load_endpoints
from laar.errors import SettingError
from laar.faults import Fault
from laar.server.collectors import must_exist
from laar.server.learning import artifact_of
from laar.server.ports import ports_in_use
from laar.server.runner import Runner
from laar.server.token_file import OUTCOMES, VIEWERS, token_in
from laar.settings import Loaded, Settings
from laar.settings.section import value_at


def faults(loaded: Loaded, *, ports: bool = True) -> list[str]:
    """Return the reasons why startup with these settings would fail, each with a fix.

    Args:
        loaded: the settings.
        ports: whether to require free addresses; use False next to a running picker.
    """
    settings = loaded.settings
    found: dict[str, None] = {}
    steps: list[Callable[[], object]] = [*_parts(settings), partial(_assemble, loaded)]
    for step in steps:
        try:
            with loaded.located():
                step()
        except SettingError as fault:
            found[str(fault)] = None
    taken = ports_in_use(settings.listen) if ports else []
    for other in (*taken, *_unwritable(settings)):
        found[loaded.at(other.setting) + str(other).removeprefix(f"{other.setting}: ")] = None
    return list(found)


def _parts(settings: Settings) -> Iterator[Callable[[], object]]:
    """Yield a check for each file, since assembling stops at the first error."""
    members = settings.endpoints_file
    if members is not None:
        yield partial(must_exist, members)
    if members is not None and members.is_file():
        yield partial(load_endpoints, members)
    yield lambda: artifact_of(settings.accuracy)
    yield from (partial(token_in, settings, name) for name in (OUTCOMES, VIEWERS))
    tls = settings.listen.tls
    if tls is not None:
        from laar.server.tls import check_tls

        yield lambda: check_tls(tls)


def _assemble(loaded: Loaded) -> None:
    async def start() -> None:
        runner = Runner(loaded)
        runner.prepare()

    asyncio.run(start())


def _unwritable(settings: Settings) -> Iterator[SettingError]:
    """Yield an error for each file that serving would write but can't."""
    for name, fault in (
        ("decisions.log", Fault.DECISION_LOG),
        ("share.snapshot_file", Fault.SNAPSHOT),
        ("envoy.eds_file", Fault.EDS),
    ):
        path = value_at(settings, name)
        if path is None:
            continue
        above = path.parent
        if name == "envoy.eds_file":  # laar creates its directory
            above = next(parent for parent in path.parents if parent.exists())
        appends = name == "decisions.log" and os.access(path, os.W_OK)  # others are replaced whole
        if not appends and not (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
            yield SettingError(
                f"{path} can't be written: {above} is not a directory that this user can write to",
                setting=name,
                fault=fault,
            )
        elif path.is_dir():  # unknown in a directory that this user may not enter
            yield SettingError(f"{path} is a directory; name a file in it", setting=name)
