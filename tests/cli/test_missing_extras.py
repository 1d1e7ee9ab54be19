"""A command whose extra is not installed says so on one line."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from laar.cli.installed import GROUP, OF_LAB

_WITHOUT = """
import sys
for name in sys.argv.pop(1).split(","):
    sys.modules[name] = None
from laar.cli import app
app()
"""


@pytest.mark.parametrize(
    ("absent", "arguments", "extra"),
    [
        ("sklearn", ("fit", "outcomes.jsonl"), "fit"),
        (
            "zmq",
            ("sim-endpoint", "--port", "0", "--kv-events", "tcp://127.0.0.1:0"),
            "kv-events",
        ),
    ],
)
def test_a_missing_extra_is_reported_on_one_line(
    absent: str, arguments: tuple[str, ...], extra: str
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _WITHOUT, absent, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 2, ran.stderr
    assert f"pip install '.[{extra}]'" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


_WITHOUT_LAB = """
from laar.cli import app, installed
installed.entry_points = lambda **_: []
app()
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ("demo",),
        ("lab", "run", "gorgo-rtt", "--quick"),
        ("sim-endpoint", "--help"),
    ],
    ids=" ".join,
)
def test_without_laar_lab_its_commands_report_on_one_line_what_to_install(
    arguments: tuple[str, ...],
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _WITHOUT_LAB, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == (
        "laar: this needs the package laar-lab; in a clone of laar: pip install . ./engine ./lab\n"
    )


def test_every_command_of_laar_lab_is_known_without_it() -> None:
    of_lab = {point.name for point in entry_points(group=GROUP) if point.dist.name == "laar-lab"}
    assert set(OF_LAB) == of_lab
