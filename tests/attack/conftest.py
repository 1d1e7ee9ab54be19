"""Share one system per shape among all cases, so that a case takes milliseconds; print a table."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from attacked import Attacked, Judge, attacked, one_pool, patient

from support import eventually

_rows: list[tuple[str, ...]] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--attack-table", action="store_true", help="print what each attack met")


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=["standalone", "gateway"])
async def stand(request: pytest.FixtureRequest, envoy_binary: Path) -> AsyncIterator[Attacked]:
    shape, _, waits = request.param.partition(", ")
    async with attacked(shape, change=patient if waits else one_pool) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="session")
async def target(stand: Attacked) -> AsyncIterator[Attacked]:
    """Yield the system with healthy engines; assert that it still serves others afterwards."""
    stand.reset()
    yield stand
    stand.reset()
    await eventually(stand.decides, what="a decision on a plain request")


@pytest.fixture
def judge(request: pytest.FixtureRequest) -> Judge:
    """Return a function that records what was expected and seen, and asserts the verdict."""

    def note(expected: str, seen: object, holds: bool, case: str = "") -> None:
        request.node.user_properties.append(("attack", (case, expected, str(seen)[:90], holds)))
        assert holds, f"expected {expected}; seen: {seen}"

    return note


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when != "call":
        return
    verdict = {"passed": "met", "failed": "MISSED", "skipped": "known"}[report.outcome]
    if "XPASS" in str(report.longrepr):
        verdict = "mended"  # the case passes now, so its mark must be removed
    for name, value in report.user_properties:
        if name == "attack":
            _, _, test = report.nodeid.partition("::")
            case, expected, seen, holds = value
            met = "met" if holds and verdict == "MISSED" else verdict  # another case missed
            _rows.append((f"{test} {case}".rstrip(), expected, seen, met))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if not config.getoption("--attack-table", default=False):
        return
    terminalreporter.section("attacks")
    for case, expected, seen, verdict in _rows:
        terminalreporter.write_line(f"{verdict:7} {case}\n        expected {expected}; seen {seen}")
    missed = sum(verdict != "met" for *_, verdict in _rows)
    terminalreporter.write_line(f"{len(_rows)} cases, {missed} not met")
