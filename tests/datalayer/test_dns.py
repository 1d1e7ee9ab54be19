from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from laar.datalayer import dns
from laar.datalayer.dns import MAX_ADDRESSES, MAX_AT_ONCE, Resolver, system_lookup
from laar.fleet.membership import EndpointSpec


class Names:
    """A fake DNS that resolves only the names that a test has set."""

    def __init__(self, **names: Sequence[str]) -> None:
        self.names = names
        self.asked: list[str] = []
        self.hang = asyncio.Event()
        self.hang.set()

    async def lookup(self, name: str) -> Sequence[str]:
        self.asked.append(name)
        await self.hang.wait()
        try:
            return self.names[name]
        except KeyError:
            raise OSError(-2, "Name or service not known") from None


def spec(address: str, *models: str) -> EndpointSpec:
    return EndpointSpec(address=address, models=models or ("tiny",))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("laar.datalayer.dns.INTERVAL_S", 0.01)
    monkeypatch.setattr("laar.datalayer.dns.RETRY_S", 0.01)


@pytest.fixture
def resolve(recorder: Any, start: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Resolver]:
    """Return a function that starts a resolver with a fake DNS."""

    def begin(
        names: Names, *specs: EndpointSpec, works: Callable[[str], bool] = lambda _address: False
    ) -> Resolver:
        monkeypatch.setattr(dns, "system_lookup", names.lookup)
        under_test = Resolver(recorder, works)
        under_test.replace("file", specs)
        start(under_test.run())
        return under_test

    return begin


@pytest.fixture
def hanging(resolve: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Names, Resolver]]:
    """Return a function that starts a resolver whose lookups hang."""

    def begin(*specs: EndpointSpec) -> tuple[Names, Resolver]:
        monkeypatch.setattr("laar.datalayer.dns.TIMEOUT_S", 0.02)
        names = Names(gpu=["10.0.0.1"])
        names.hang.clear()
        return names, resolve(names, *specs)

    return begin


async def test_ip_literals_pass_immediately_and_names_follow(
    recorder: Any, resolve: Any, until: Any
) -> None:
    names = Names(gpu=["10.0.0.2", "10.0.0.1"], six=["2001:db8::1"])
    resolve(names, spec("10.9.9.9:1"), spec("gpu:8000", "a", "b"), spec("six:7"))
    assert recorder.addresses == ["10.9.9.9:1"]
    expected = ["10.0.0.1:8000", "10.0.0.2:8000", "10.9.9.9:1", "[2001:db8::1]:7"]
    await until(lambda: recorder.addresses == expected)
    by_address = {one.address: one for one in recorder.specs["file"]}
    assert by_address["10.0.0.1:8000"].models == ("a", "b")


async def test_endpoints_are_replaced_only_when_dns_records_change(
    recorder: Any, resolve: Any, until: Any
) -> None:
    names = Names(gpu=["10.0.0.1"])
    resolve(names, spec("gpu:8000"))
    await until(lambda: len(names.asked) > 5)
    assert recorder.replaced == 2
    names.names["gpu"] = ["10.0.0.3"]
    await until(lambda: recorder.addresses == ["10.0.0.3:8000"])


async def test_names_resolved_together_are_passed_on_together(
    recorder: Any, resolve: Any, until: Any
) -> None:
    found = {f"n{i}": [f"10.0.{i}.1"] for i in range(100)}
    resolve(Names(**found), *(spec(f"{name}:1") for name in found))
    await until(lambda: len(recorder.addresses) == 100)
    assert recorder.replaced < 20


async def test_a_name_that_fails_keeps_its_last_addresses_and_recovers(
    recorder: Any, resolve: Any, until: Any
) -> None:
    names = Names(gpu=["10.0.0.1"])
    resolve(names, spec("gpu:8000"))
    await until(lambda: recorder.addresses)
    del names.names["gpu"]
    await until(lambda: recorder.problems)
    assert recorder.problems["dns gpu"] == (
        "gpu does not resolve: Name or service not known; its last addresses stay in use: 10.0.0.1"
    )
    assert recorder.addresses == ["10.0.0.1:8000"]
    names.names["gpu"] = []
    await until(lambda: "the name has no address" in recorder.problems["dns gpu"])
    assert recorder.addresses == ["10.0.0.1:8000"]
    names.names["gpu"] = ["10.0.0.2"]
    await until(lambda: recorder.addresses == ["10.0.0.2:8000"])
    assert recorder.problems == {}


async def test_a_hanging_lookup_is_reported_and_occupies_one_slot_until_it_answers(
    recorder: Any, until: Any, hanging: Any
) -> None:
    names, _ = hanging(spec("gpu:8000"), *(spec(f"n{i}:1") for i in range(20)))
    await until(lambda: len(recorder.problems) >= MAX_AT_ONCE)
    assert "no answer in 0.02 s" in next(iter(recorder.problems.values()))
    assert len(names.asked) == MAX_AT_ONCE
    names.hang.set()
    await until(lambda: recorder.addresses == ["10.0.0.1:8000"])


async def test_names_removed_from_the_source_are_forgotten(
    recorder: Any, resolve: Any, until: Any
) -> None:
    names = Names(gpu=["10.0.0.1"])
    under_test = resolve(names, spec("gpu:8000"), spec("bad:8000"))
    await until(lambda: recorder.addresses and "dns bad" in recorder.problems)
    under_test.replace("file", [spec("10.1.1.1:1")])
    assert recorder.addresses == ["10.1.1.1:1"]
    await until(lambda: recorder.problems == {})
    under_test.replace("file", [spec("gpu:8000")])
    assert recorder.addresses == []
    await until(lambda: recorder.addresses == ["10.0.0.1:8000"])


async def test_two_names_for_one_address_are_one_endpoint(
    recorder: Any, resolve: Any, until: Any
) -> None:
    names = Names(a=["10.0.0.1"], b=["10.0.0.1"])
    under_test = resolve(names, spec("a:1", "first"), spec("b:1", "first"), spec("b:1", "second"))
    await until(lambda: recorder.addresses)
    assert [one.models for one in recorder.specs["file"]] == [("first",)]
    assert "b:1 is 10.0.0.1:1, which is already listed" in recorder.problems["dns file"]
    names.names["b"] = ["10.0.0.2"]
    await until(lambda: len(recorder.addresses) == 2)
    under_test.replace("file", [spec("a:1", "first"), spec("b:1", "second")])
    assert not recorder.problems.get("dns file")


async def test_a_name_with_too_many_addresses_is_truncated_consistently(
    recorder: Any, resolve: Any, until: Any
) -> None:
    many = [f"10.{i}.{j}.1" for i, j in itertools.product(range(20), range(20))]
    names = Names(gpu=many)
    resolve(names, spec("gpu:1"))
    await until(lambda: recorder.addresses)
    assert len(recorder.addresses) == MAX_ADDRESSES
    assert "the last 144 are left out" in recorder.problems["dns gpu"]
    names.names["gpu"] = many[::-1]
    asked = len(names.asked)
    await until(lambda: len(names.asked) > asked + 2)
    assert recorder.replaced == 2


class Parts(Names):
    """Answers each look-up with a part of the addresses, as Consul does."""

    def __init__(self, addresses: Sequence[str], most: int, seed: int) -> None:
        super().__init__(gpu=addresses)
        self.most, self.rng = most, random.Random(seed)

    async def lookup(self, name: str) -> Sequence[str]:
        found = await super().lookup(name)
        return self.rng.sample(list(found), min(self.most, len(found)))


@pytest.mark.parametrize(("addresses", "most"), [(6, 3), (6, 5), (4, 1), (12, 3)])
async def test_an_address_that_answers_outlives_partial_answers(
    recorder: Any, resolve: Any, until: Any, figure: Any, addresses: int, most: int
) -> None:
    all_of_them = [f"10.0.0.{n}" for n in range(1, addresses + 1)]
    names, gone = Parts(all_of_them, most, seed=5), set[str]()
    resolve(names, spec("gpu:8000"), works=lambda address: address not in gone)
    await until(lambda: len(recorder.addresses) == addresses)
    asked, replaced = len(names.asked), recorder.replaced
    assert replaced <= addresses + 1
    await until(lambda: len(names.asked) > asked + 40)
    figure("changes of the list in 40 look-ups", recorder.replaced - replaced, "at most 6")
    assert recorder.replaced == replaced
    assert "only some of its addresses" in recorder.problems["dns gpu"]
    names.names["gpu"] = all_of_them[1:]
    gone.add("10.0.0.1:8000")  # it stops working once it has left
    await until(lambda: len(recorder.addresses) == addresses - 1)
    names.names["gpu"] = all_of_them[:1]
    gone.clear()
    gone.update(f"{ip}:8000" for ip in all_of_them[1:])
    await until(lambda: recorder.addresses == ["10.0.0.1:8000"])


async def test_an_address_that_left_stays_for_a_few_answers_only(
    recorder: Any, resolve: Any, until: Any
) -> None:
    names = Names(gpu=["10.0.0.1", "10.0.0.2"])
    resolve(names, spec("gpu:8000"), works=lambda _address: True)
    await until(lambda: len(recorder.addresses) == 2)
    names.names["gpu"] = ["10.0.0.2"]
    asked = len(names.asked)
    await until(lambda: recorder.addresses == ["10.0.0.2:8000"])
    assert len(names.asked) - asked <= 20  # several, while changes are gathered
    assert recorder.problems == {}


async def test_the_system_resolver_prefers_one_family() -> None:
    assert await system_lookup("localhost") in (["127.0.0.1"], ["::1"])
