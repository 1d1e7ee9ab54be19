"""A short run of each fuzz target, and every input that once found a bug."""

from pathlib import Path

import pytest
from fuzz.blind import inputs
from fuzz.targets import TARGETS

from fuzz import live

FOUND = sorted((Path(__file__).parent / "found").glob("*/*"))


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_a_few_hundred_inputs_find_no_bug(name):
    for data in inputs(7, 300):
        TARGETS[name](data)


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_inputs_that_once_crashed_no_longer_do(path):
    TARGETS[path.parent.name](path.read_bytes())


def test_messages_in_any_order_leave_nothing_behind_in_a_running_picker():
    done, _, crashes, hangs = live.run(20.0, 200, 3)
    assert done > 0
    assert (crashes, hangs) == (0, 0)
