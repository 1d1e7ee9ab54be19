from __future__ import annotations

import gc
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import hypothesis
import pytest
from hypothesis.internal.conjecture import providers

from laar.envoy.process import find_binary
from laar.errors import SettingError

_WORKERS = 4
"""The number of workers that `make test` starts on two cores."""

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # `bench` is imported by tests that compare with its no-op picker


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--figures", action="store_true", help="print the numbers that tests measure")


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until all tests are collected, as nothing is freed before
    # Envoy's typed messages cause warnings when imported.
    config.addinivalue_line("filterwarnings", "ignore::DeprecationWarning:envoy_data_plane")
    # No test asserts an absolute time, so a busy machine must not fail one. Examples are the same
    # each time, so that a new failure is due to the change; the slow suite looks for new examples.
    explore = "not slow" not in config.option.markexpr
    if not explore:  # as constants of the modules that happen to be loaded would become examples
        providers.is_local_module_file = lambda _path: False
    for name, count in (("laar", 100), ("quick", 25)):
        hypothesis.settings.register_profile(
            name, deadline=None, max_examples=count, derandomize=name == "quick"
        )
    hypothesis.settings.load_profile("laar" if explore else "quick")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread each folder over the workers, to which xdist gives consecutive parts of the list."""

    def place(item: pytest.Item) -> object:
        # Files that attack one system stay together: each worker would start one of its own.
        return "stand" if "stand" in getattr(item, "fixturenames", ()) else item.path

    files = {path: n for n, path in enumerate(dict.fromkeys(map(place, items)))}
    # A stable sort, so files stay together.
    items.sort(key=lambda item: files[place(item)] % _WORKERS)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print figures, and which tests pass only when `make test` runs them again."""
    reports = terminalreporter.getreports("passed")
    passed = [report.nodeid for report in reports]
    if config.getoption("--figures"):
        terminalreporter.section("figures")
        for report in reports:
            for name, (seen, target) in report.user_properties:
                terminalreporter.write_line(f"{seen:>6} (target {target})  {name}")
    if config.getoption("lf", default=False) and passed:
        terminalreporter.section(f"{len(passed)} passed only when run again")
        terminalreporter.write("".join(f"{name}\n" for name in passed))


def pytest_collection_finish() -> None:
    # Exempt the tests and the modules that they import from garbage collection: they stay.
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def envoy_binary() -> Path:
    """Return the path of the real Envoy; skip the test if none is installed."""
    try:
        return find_binary()
    except SettingError as error:
        pytest.skip(str(error))


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str, object, str], None]:
    """Return a function that keeps what was measured, and the target, for `--figures`."""

    def note(name: str, seen: object, target: str) -> None:
        case = request.node.name.partition("[")[2].rstrip("]")
        shown = f"{seen:.2f}" if isinstance(seen, float) else str(seen)
        request.node.user_properties.append((f"{name} [{case}]", (shown, target)))

    return note


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """Yield an HTTP client."""
    async with aiohttp.ClientSession() as session:
        yield session
