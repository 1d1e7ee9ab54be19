"""Troubles of a stand, and a seeded schedule for them.

There are three lanes with one trouble at a time: one for the endpoints of each of two models, so
that two of three stay healthy unless a whole model is meant to fail, and one for pickers, Envoy,
files, disk, clock and settings. A trouble restores everything at its end.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import yaml

from bench.chaos.asking import End
from bench.chaos.stand import Stand

__all__ = ["CLOCK_TROUBLE", "ENDPOINT_TROUBLES", "SYSTEM_TROUBLES", "Lane", "Struck", "Trouble"]

_AFTERMATH_S = 1.0
"""Seconds after a trouble in which new requests are still attributed to it."""

_LEARNING_S = 2.0
"""Seconds that a picker has to stop using a failing endpoint."""


@dataclass(slots=True, kw_only=True)
class Struck:
    """A trouble that happened; times are monotonic seconds.

    `fed` counts requests to an endpoint that fails all of them, in the `fed_s` seconds after
    `_LEARNING_S`.
    """

    trouble: Trouble
    addresses: tuple[str, ...]
    began_s: float
    ended_s: float = float("inf")
    fed: int | None = None
    fed_s: float = 0.0

    def overlaps(self, began_s: float, ended_s: float) -> bool:
        """Return whether it could affect a request with these times."""
        return began_s <= self.ended_s + _AFTERMATH_S and ended_s >= self.began_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One kind of trouble.

    Args:
        name: name in the table.
        faults: faults to set at endpoints, for a trouble of endpoints.
        excuses: outcomes without an error body that it explains.
        gateway_excuses: more outcomes that it explains if answers pass through the picker.
        unsettles: whether pickers lose learned estimates or are bypassed.
        reason: the reason stated in laar's errors during it; empty if there is none.
        fails_all: whether it fails every request, so that pickers should avoid the endpoint.
        seconds: shortest and longest duration.
        act: causes a trouble of the system and undoes it; takes the stand, a random generator and
            the seconds.
    """

    name: str
    faults: tuple[str, ...] = ()
    excuses: frozenset[End] = frozenset()
    gateway_excuses: frozenset[End] = frozenset()
    unsettles: bool = False
    reason: str = ""
    fails_all: bool = False
    seconds: tuple[float, float] = (1.5, 4.0)
    act: Callable[[Stand, random.Random, float], Awaitable[None]] | None = None


_CUT = frozenset({End.CUT})
_LATE = frozenset({End.TIMEOUT})
_AWAY = frozenset({End.CUT, End.NO_CONNECTION})
_LONG_BYTES = 4000

ENDPOINT_TROUBLES = (
    Trouble(name="503", faults=("503",), fails_all=True, seconds=(3, 5)),
    Trouble(name="503 with retry-after", faults=("503:1",)),
    Trouble(name="500", faults=("500",), fails_all=True, seconds=(3, 5)),
    Trouble(name="502 to half", faults=("502@0.5",)),
    Trouble(name="503 every second", faults=("503@every=2",)),
    Trouble(name="500 to long prompts", faults=(f"500@longer={_LONG_BYTES}",)),
    Trouble(name="401", faults=("401@without=authorization",), fails_all=True, seconds=(3, 5)),
    Trouble(name="404", faults=("404",)),
    Trouble(name="429 with retry-after", faults=("429:1",)),
    Trouble(name="queue full", faults=("full",)),
    Trouble(name="error in a 200", faults=("error",), fails_all=True, seconds=(3, 5)),
    Trouble(name="late error in a 200", faults=("late-error:3",)),
    Trouble(name="hangs", faults=("hang",), excuses=_LATE, seconds=(2, 5)),
    Trouble(name="hangs before headers", faults=("mute",), excuses=_LATE, seconds=(2, 5)),
    Trouble(name="falls silent", faults=("stall:4",), excuses=_LATE | _CUT, seconds=(2, 5)),
    Trouble(name="reset before headers", faults=("refuse",), excuses=_CUT),
    Trouble(name="reset in the middle", faults=("reset:4",), excuses=_CUT),
    Trouble(name="body cut short", faults=("cut:4",), excuses=_CUT),
    Trouble(name="ten times slower", faults=("slow:10",), seconds=(2, 5)),
    Trouble(name="refuses connections", faults=("closed",), excuses=_CUT),
    Trouble(name="restarts empty", faults=("oom",), excuses=_CUT),
    Trouble(name="health page fails", faults=("health",)),
    Trouble(name="metrics frozen", faults=("metrics-frozen",)),
    Trouble(name="metrics say idle", faults=("metrics-idle",)),
    Trouble(name="metrics NaN", faults=("metrics-nan",)),
    Trouble(name="metrics huge", faults=("metrics-huge:4",)),
    Trouble(name="metrics HTML", faults=("metrics-type",)),
    Trouble(name="metrics slow", faults=("metrics-slow:3",)),
    Trouble(name="metrics 500, health fails", faults=("metrics-status", "health")),
    Trouble(name="idle page, 503", faults=("metrics-idle", "503"), fails_all=True, seconds=(3, 5)),
)
_WHOLE_MODEL = ("503", "500", "reset before headers", "hangs", "refuses connections")
_WHOLE_SHARE = 0.04


class Lane:
    """A seeded sequence of troubles, one at a time.

    Args:
        stand: the stand to disturb.
        rng: random generator for the schedule.
        troubles: troubles to draw from; each occurs once before any repeats.
        endpoints: indexes of endpoints to choose from; empty for troubles of the system.
        keep: receives each trouble as it begins.
        gap_s: longest pause between two.
    """

    def __init__(
        self,
        stand: Stand,
        rng: random.Random,
        troubles: Sequence[Trouble],
        *,
        endpoints: Sequence[int] = (),
        keep: Callable[[Struck], None],
        gap_s: float = 1.0,
    ) -> None:
        self._stand = stand
        self._rng = rng
        self._troubles = troubles
        self._endpoints = endpoints
        self._keep = keep
        self._gap_s = gap_s
        self._bag: list[Trouble] = []

    async def run(self, until_s: float) -> None:
        """Cause troubles until `until_s` (monotonic); return when the last one is undone."""
        while time.monotonic() < until_s:
            if not self._bag:
                self._bag = self._rng.sample(self._troubles, len(self._troubles))
            trouble = self._bag.pop()
            seconds = self._rng.uniform(*trouble.seconds)
            if trouble.act is not None:
                struck = Struck(trouble=trouble, addresses=(), began_s=time.monotonic())
                self._keep(struck)
                await trouble.act(self._stand, self._rng, seconds)
            else:
                struck = await self._strike(trouble, seconds)
            struck.ended_s = time.monotonic()
            await asyncio.sleep(self._rng.uniform(0.2, self._gap_s))

    async def _strike(self, trouble: Trouble, seconds: float) -> Struck:
        """Make one endpoint fail, or occasionally all of its model's."""
        stand = self._stand
        chosen = [self._rng.choice(self._endpoints)]
        if self._rng.random() < _WHOLE_SHARE and trouble.name in _WHOLE_MODEL:
            chosen = list(self._endpoints)
        addresses = tuple(stand.addresses[index] for index in chosen)
        struck = Struck(trouble=trouble, addresses=addresses, began_s=time.monotonic())
        self._keep(struck)
        if trouble.faults[0] in ("oom", "closed"):
            for index in chosen:
                await stand.outage(index, seconds, forget=trouble.faults[0] == "oom")
            await asyncio.sleep(seconds)
        else:
            for index in chosen:
                await stand.set_faults(index, *trouble.faults)
            if trouble.fails_all and len(chosen) == 1:
                await asyncio.sleep(_LEARNING_S)
                before, _ = await stand.faults_seen(chosen[0])
                struck.fed_s = max(0.5, seconds - _LEARNING_S)
                await asyncio.sleep(struck.fed_s)
                struck.fed = (await stand.faults_seen(chosen[0]))[0] - before
            else:
                await asyncio.sleep(seconds)
        for index in chosen:
            await stand.set_faults(index)
        return struck


# The system's troubles.


def _end(number: int) -> Callable[[Stand, random.Random, float], Awaitable[None]]:
    """Return an act that ends a picker with a signal, and restarts it."""

    async def act(stand: Stand, rng: random.Random, seconds: float) -> None:
        index = rng.randrange(len(stand.pickers))
        await stand.pickers[index].end(number)
        await asyncio.sleep(seconds)
        await stand.restart_picker(index)

    return act


async def _stop(stand: Stand, rng: random.Random, seconds: float) -> None:
    picker = rng.choice(stand.pickers)
    picker.send(signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        picker.send(signal.SIGCONT)


async def _replace_envoy(stand: Stand, rng: random.Random, seconds: float) -> None:
    await stand.replace_envoy(drain_s=20.0)


async def _kill_envoy(stand: Stand, rng: random.Random, seconds: float) -> None:
    assert stand.envoy is not None
    await stand.envoy.end(signal.SIGKILL)
    await stand.start_envoy()


def _text(path: str, *texts: str) -> Callable[[Stand, random.Random, float], Awaitable[None]]:
    """Return an act that replaces a file of the stand by one of the texts."""

    async def act(stand: Stand, rng: random.Random, seconds: float) -> None:
        target = getattr(stand, path)
        whole = target.read_text()
        stand.write(target, rng.choice(texts))
        await asyncio.sleep(seconds)
        stand.write(target, whole)

    return act


async def _delete_endpoints(stand: Stand, rng: random.Random, seconds: float) -> None:
    stand.endpoints_file.unlink()
    await asyncio.sleep(seconds)
    stand.write(stand.endpoints_file, stand.members())


async def _flap_endpoints(stand: Stand, rng: random.Random, seconds: float) -> None:
    """Rewrite the file in place (not by rename), in two halves."""
    whole = stand.members()
    for _ in range(10):
        with stand.endpoints_file.open("w") as file:
            file.write(whole[: len(whole) // 2])
            file.flush()
            await asyncio.sleep(seconds / 20)
            file.write(whole[len(whole) // 2 :])
        await asyncio.sleep(seconds / 20)


async def _remove_endpoint(stand: Stand, rng: random.Random, seconds: float) -> None:
    gone = rng.randrange(len(stand.addresses))
    stand.write(stand.endpoints_file, stand.members(without=[gone]))
    await asyncio.sleep(seconds)
    stand.write(stand.endpoints_file, stand.members())


async def _garble_eds(stand: Stand, rng: random.Random, seconds: float) -> None:
    eds = stand.eds_directory / "endpoints.json"
    whole = eds.read_text()
    for _ in range(100):
        if all(address.rpartition(":")[2] in whole for address in stand.addresses):
            break
        await asyncio.sleep(0.1)  # else restoring would undo the end of the previous trouble
        whole = eds.read_text()
    stand.write(eds, rng.choice(("", "{", '{"resources": [{"@type": "nothing"}]}', "\0" * 64)))
    await asyncio.sleep(seconds)
    stand.write(eds, whole)


async def _garble_settings(stand: Stand, rng: random.Random, seconds: float) -> None:
    text = rng.choice(("", "routing: {k_queue: -1}", "nonsense: [", "{}", "routing: {polcy: x}"))
    for index in range(stand.plan.pickers):
        stand.write(stand.settings_file(index), text)
    await asyncio.sleep(seconds)
    stand.write_settings()


async def _change_settings(stand: Stand, rng: random.Random, seconds: float) -> None:
    routing = {"fallbacks": rng.randint(1, 4), "max_waiting": rng.randint(16, 256)}
    stand.write_settings(routing=routing, bodies={"sample_answers": rng.choice((0.0, 0.5, 1.0))})
    await asyncio.sleep(seconds)
    stand.write_settings()


async def _fill_disk(stand: Stand, rng: random.Random, seconds: float) -> None:
    for picker in stand.pickers:
        picker.limit_files(0)
    await asyncio.sleep(seconds)
    for picker in stand.pickers:
        picker.limit_files(None)


async def _set_clock(stand: Stand, rng: random.Random, seconds: float) -> None:
    stand.clock_file.write_text(rng.choice(("+3600", "-3600", "+90", "-90", "+0")))
    await asyncio.sleep(seconds)
    stand.clock_file.write_text("+0")


_BROKEN_MEMBERS = (
    "",
    "endpoints: [",
    "endpoints: [{address: nonsense}]",
    "endpoints: [{adress: '127.0.0.1:80'}]",
    "!!python/object:os.system {}",
    yaml.safe_dump([1, 2, 3]),
)

SYSTEM_TROUBLES = (
    Trouble(
        name="picker SIGTERM",
        act=_end(signal.SIGTERM),
        seconds=(0.2, 1.5),
        unsettles=True,
    ),
    Trouble(
        name="picker SIGKILL",
        act=_end(signal.SIGKILL),
        seconds=(0.2, 1.5),
        unsettles=True,
        gateway_excuses=_CUT,
    ),
    Trouble(name="picker SIGSTOP", act=_stop, seconds=(2, 5), unsettles=True, gateway_excuses=_CUT),
    Trouble(name="Envoy replaced", act=_replace_envoy),
    Trouble(name="Envoy SIGKILL", act=_kill_envoy, excuses=_AWAY),
    Trouble(name="endpoints file broken", act=_text("endpoints_file", *_BROKEN_MEMBERS)),
    Trouble(
        name="endpoints file empty list",
        act=_text("endpoints_file", "endpoints: []"),
        unsettles=True,
        reason="no-endpoints",
        seconds=(0.8, 1.2),
    ),
    Trouble(name="endpoints file deleted", act=_delete_endpoints),
    Trouble(name="endpoints file flaps", act=_flap_endpoints),
    Trouble(name="endpoint removed", act=_remove_endpoint, unsettles=True),
    Trouble(name="Envoy's endpoints file broken", act=_garble_eds),
    Trouble(name="artifact broken", act=_text("artifact", "", "{", '{"version": 99}', "[" * 9999)),
    Trouble(name="settings broken", act=_garble_settings),
    Trouble(name="settings changed", act=_change_settings),
    Trouble(name="disk full", act=_fill_disk),
)
CLOCK_TROUBLE = Trouble(name="clock set", act=_set_clock)
