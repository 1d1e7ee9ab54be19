"""Resolve the DNS names in endpoint addresses, repeatedly and in the background.

`Resolver` sits between a source of endpoints and the table: it receives specs whose addresses may
be names and passes on one spec per IP address. IP literals pass immediately. The system resolver
does not report a TTL, so names are looked up every ten seconds. A name that stops resolving keeps
its last addresses: a DNS outage must not remove working endpoints.

Some servers answer with a random part of a name's addresses (Consul, or any whose answer must fit
in a packet). An address that is missing is not gone as long as its endpoint answers: it stays for
the next few answers, and if one has returned, for so many that it would have been among them.

If a name has addresses of both families, only IPv4 is used: both lead to the same server, and
counting it as two would halve its load in every estimate.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace

from laar.datalayer.endpoints_file import dns_name, join_address
from laar.datalayer.interface import GONE, EndpointSink
from laar.datalayer.visits import cancel, until_look_s
from laar.faults import Fault
from laar.fleet.membership import EndpointSpec
from laar.latest import Latest

INTERVAL_S = 10.0
"""Seconds between lookups of a name, since a fleet's records change as pods come and go."""
RETRY_S = 2.0
"""Seconds until a failed lookup is repeated."""
TIMEOUT_S = 5.0
"""Timeout of a lookup, the same as the system resolver's for its first query. The lookup's thread
keeps running."""
MAX_AT_ONCE = 4
"""Maximum number of concurrent lookups. Each occupies a thread, for a long time if the DNS server
is down."""
GATHER_S = 0.05
"""Seconds for which changes are gathered before they are passed on. Each time, the whole source is
passed on: with a thousand names, doing so once per name would take seconds of CPU."""
KEPT = 3
"""Answers in a row that must lack an address that still works before it is removed."""
PARTIAL_KEPT = 10
"""The same for names whose answers are partial, times the number of answers that together have as
many addresses as are known: one of ten thousand addresses is removed by chance."""
PARTIAL_FOR = 360
"""Answers for which a name is considered to be answered in part, after an address has returned."""
MAX_ADDRESSES = 256
"""Maximum number of addresses per name; the lowest are used, so that the selection is stable."""


async def system_lookup(name: str) -> Sequence[str]:
    """Return a name's addresses from the system resolver, which runs in a thread.

    Raise `OSError` if there are none.
    """
    found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    v4 = {str(address[0]) for family, _, _, _, address in found if family == socket.AF_INET}
    v6 = {str(address[0]) for family, _, _, _, address in found if family == socket.AF_INET6}
    return sorted(v4 or v6)


class Resolver:
    """A collector that resolves names, and an `EndpointSink` for sources that use names.

    Args:
        sink: receives the resolved endpoints, with the name of their source.
        works: returns whether the endpoint at an address answers, as far as is known.
    """

    def __init__(
        self, sink: EndpointSink, works: Callable[[str], bool] = lambda _address: False
    ) -> None:
        self._sink = sink
        self._works = works
        self.problem = sink.problem  # pass on the sources' problems
        self._declared: dict[str, Sequence[EndpointSpec]] = {}
        self._names: set[str] = set()
        self._asking: set[str] = set()
        self._addresses: dict[str, tuple[str, ...]] = {}
        self._missing: dict[str, Latest[str, int]] = {}  # by name: answers without each address
        self._partial: dict[str, int] = {}  # by name: answers that are expected to be partial
        self._has_changed = False
        self._at_once = asyncio.Semaphore(MAX_AT_ONCE)

    def replace(self, source: str, specs: Sequence[EndpointSpec]) -> None:
        """Replace a source's endpoints; pass on those whose addresses are known."""
        self._declared[source] = specs
        declared = [spec for specs in self._declared.values() for spec in specs]
        self._names = {dns_name(spec.address) for spec in declared} - {""}
        self._hand_on(source)

    async def run(self) -> None:
        """Look up names until cancelled."""
        tasks: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                for gone in tasks.keys() - self._names:
                    for kept in (self._addresses, self._missing, self._partial):
                        kept.pop(gone, None)
                    self._sink.problem(Fault.DNS, GONE, gone)
                    if gone not in self._asking:  # otherwise its thread still runs
                        tasks.pop(gone).cancel()
                for name in self._names:
                    if name not in tasks or tasks[name].done():  # done after an unexpected error
                        tasks[name] = asyncio.create_task(self._follow(name), name=f"dns {name}")
                await asyncio.sleep(until_look_s())
        finally:
            await cancel(tasks.values())

    async def _follow(self, name: str) -> None:
        while True:
            try:
                self._found(name, await self._answer(name))
                await asyncio.sleep(INTERVAL_S)
            except (OSError, UnicodeError, RuntimeError) as error:  # for example, no more threads
                self._failed(name, getattr(error, "strerror", None) or str(error))
                await asyncio.sleep(RETRY_S)

    async def _answer(self, name: str) -> Sequence[str]:
        async with self._at_once:
            self._asking.add(name)
            asked = asyncio.ensure_future(system_lookup(name))
            try:
                done, _ = await asyncio.wait({asked}, timeout=TIMEOUT_S)
                if not done:
                    self._failed(name, f"no answer in {TIMEOUT_S:g} s")
                # The thread can't be stopped; it counts as a lookup until it ends.
                return await asked
            finally:
                self._asking.remove(name)
                asked.cancel()

    def _found(self, name: str, found: Sequence[str]) -> None:
        if not found:
            raise OSError("the name has no address")
        kept = self._kept(name, set(found))
        addresses = tuple(sorted({*found, *kept})[:MAX_ADDRESSES])
        over, problem = len({*found, *kept}) - len(addresses), None
        if over:
            problem = f"{name} has {len(addresses) + over} addresses; the last {over} are left out"
        elif name in self._partial:
            problem = (
                f"{name} is answered with only some of its addresses at a time; those that are "
                "missing stay in use while they answer"
            )
        self._sink.problem(Fault.DNS, problem, name)
        if addresses != self._addresses.get(name):
            self._addresses[name] = addresses
            if not self._has_changed:
                asyncio.get_running_loop().call_later(GATHER_S, self._hand_on_all)
            self._has_changed = True

    def _kept(self, name: str, found: set[str]) -> list[str]:
        """Return the addresses that an answer lacks, but that are not considered gone."""
        missing = self._missing.setdefault(name, Latest(MAX_ADDRESSES))
        left = self._partial.pop(name, 0) - 1
        if not found.isdisjoint(missing):  # some were not gone
            left = PARTIAL_FOR
        if left > 0:
            self._partial[name] = left
        known = set(self._addresses.get(name, ()))
        most = KEPT if left <= 0 else PARTIAL_KEPT * len(known | found) / len(found)
        for ip in found & missing.keys():
            del missing[ip]
        for ip in known - found:
            missing[ip] = missing.get(ip, 0) + 1
        declared = (spec.address for specs in self._declared.values() for spec in specs)
        ports = {each.rpartition(":")[2] for each in declared if dns_name(each) == name}
        return [
            ip
            for ip in known - found
            if missing[ip] < most and any(self._works(join_address(ip, port)) for port in ports)
        ]

    def _hand_on_all(self) -> None:
        self._has_changed = False
        for source in self._declared:
            self._hand_on(source)

    def _failed(self, name: str, reason: str) -> None:
        kept = self._addresses.get(name)
        last = f"; its last addresses stay in use: {', '.join(kept)}" if kept else ""
        self._sink.problem(Fault.DNS, f"{name} does not resolve: {reason}{last}", name)

    def _hand_on(self, source: str) -> None:
        resolved: dict[str, EndpointSpec] = {}
        hidden = ""
        for spec in self._declared[source]:
            name, way = dns_name(spec.address), spec.way
            if name and not way.name:
                way = replace(way, name=name.removesuffix("."))  # not in certificates
            port = spec.address.rpartition(":")[2]
            known = [join_address(ip, port) for ip in self._addresses.get(name, ())]
            for address in known if name else [spec.address]:
                found = replace(spec, address=address, way=way)
                if resolved.setdefault(address, found).models != spec.models:
                    hidden = f"{spec.address} is {address}, which is already listed: its models"
        self._sink.replace(source, tuple(resolved.values()))
        self._sink.problem(Fault.DNS, hidden and f"{hidden} get no requests", source)
