from __future__ import annotations

import gc
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import hypothesis
import pytest
from hypothesis.internal.conjecture import providers

from laar.envoy.process import find_binary
from laar.errors import SettingError
from support import RecordingUpstream

_WORKERS = 4
"""As many as `make test` starts on two cores: tests with servers wait while others compute."""

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # `bench` is imported by tests that compare with its no-op picker


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # no garbage before collection ends
    # Envoy's typed messages cause warnings when imported.
    config.addinivalue_line("filterwarnings", "ignore::DeprecationWarning:envoy_data_plane")
    # No test asserts an absolute time, so a busy machine must not fail one. Examples are the same
    # each time, so that a new failure is due to the change; the slow suite looks for new examples.
    explore = "not slow" not in config.option.markexpr
    if not explore:  # otherwise constants of the modules that happen to be loaded become examples
        providers.is_local_module_file = lambda _path: False
    for name, count in (("laar", 100), ("quick", 25)):
        hypothesis.settings.register_profile(
            name, deadline=None, max_examples=count, derandomize=name == "quick"
        )
    hypothesis.settings.load_profile("laar" if explore else "quick")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each worker a share of every folder: xdist distributes consecutive parts of the list."""
    files = {path: n for n, path in enumerate(dict.fromkeys(item.path for item in items))}
    items.sort(key=lambda item: files[item.path] % _WORKERS)  # stable: a file stays together


def pytest_collection_finish() -> None:
    # Thousands of tests and the modules that they import stay: later collections skip them.
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def envoy_binary() -> Path:
    """The real Envoy; skips the test if none is installed."""
    try:
        return find_binary()
    except SettingError as error:
        pytest.skip(str(error))


@pytest.fixture
async def start_upstream() -> AsyncIterator[Callable[[], Awaitable[RecordingUpstream]]]:
    """Start any number of recording upstreams; all are stopped after the test."""
    async with AsyncExitStack() as stack:

        async def start(host: str = "127.0.0.1") -> RecordingUpstream:
            return await stack.enter_async_context(RecordingUpstream(host=host))

        yield start


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """An HTTP client."""
    async with aiohttp.ClientSession() as session:
        yield session
