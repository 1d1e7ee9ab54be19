"""Checkers, and the process that judges the dangerous ones."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from laar.measuring.checks import CheckSpec, decide
from laar.measuring.judge import Judge


def spec(**fields: Any) -> CheckSpec:
    return CheckSpec.model_validate(fields)


@pytest.mark.parametrize(
    ("fields", "answer", "correct"),
    [
        ({"contains": "42"}, "it is 42.", True),
        ({"contains": "42"}, "it is 24.", False),
        ({"exact": " 42"}, "42\n", True),
        ({"exact": "42"}, "42.", False),
        ({"number": 42}, "it is 42.", True),
        ({"number": 1234.5}, "$1,234.50", True),
        ({"number": 42, "tolerance": 0.5}, "first 1, then 42.4", True),
        ({"number": 42, "tolerance": 0.5}, "42 or 43", False),
        ({"number": -2.5e-3}, "x=-2.5e-3!", True),
        ({"number": 0.5}, ".5", True),
        ({"number": 1}, "none", False),
        ({"number": 1}, "1" * 20_000, False),
        ({"number": 1}, "1e999", False),
        ({"json": {"a": [1, 2.0]}}, '{"a": [1.0, 2]}', True),
        ({"json": {"a": 1}}, 'Here:\n```json\n{"a": 1}\n```\ndone', True),
        ({"json": {"a": 1}}, '{"a": true}', False),
        ({"json": {"a": 1}}, '{"a": 1, "b": 2}', False),
        ({"json": [1]}, "[1, 1]", False),
        ({"json": None}, "null", True),
        ({"json": None}, "none", False),
        ({"json": 1}, "NaN", False),
    ],
)
def test_plain_checks(fields: dict[str, Any], answer: str, correct: bool) -> None:
    assert decide(spec(**fields), answer) is correct


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"contains": "a", "exact": "b"},
        {"contains": None},
        {"tolerance": 1},
        {"regex": "("},
        {"number": float("nan")},
        {"number": 1, "tolerance": -1},
        {"python": "no colon"},
        {"python": "os:system; rm"},
        {"surprise": 1},
    ],
)
def test_checks_that_make_no_sense_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        spec(**fields)


async def test_judges_patterns_and_functions_and_outlives_those_that_hang_or_raise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_checks.py").write_text(
        "import os, sys, time\n"
        "def right(answer):\n    print('chatter')\n    return answer == '42'\n"
        "def fails(answer):\n    raise LookupError(answer)\n"
        "def leaves(answer):\n    sys.exit(3)\n"
        "async def waits(answer):\n    return False\n"
        "def dies(answer):\n    os._exit(1)\n"
        "def hangs(answer):\n    time.sleep(600)\n"
        "class Kind:\n    @staticmethod\n    def right(answer):\n        return 'yes'\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    async with Judge(timeout_s=1) as judge:

        async def ask(answer: str = "42", **fields: Any) -> tuple[bool | None, str]:
            correct, error = await judge.judge(spec(**fields), answer)
            return correct, error or ""

        assert await ask(regex="^4[0-9]$") == (True, "")
        assert await ask(regex="^5") == (False, "")
        assert await ask(python="my_checks:right") == (True, "")
        assert await ask("41", python="my_checks:right") == (False, "")
        assert await ask(python="my_checks:Kind.right") == (True, "")
        correct, error = await ask(python="my_checks:fails")
        assert correct is None
        assert "LookupError: 42" in error
        correct, error = await ask(python="my_checks:leaves")
        assert correct is None
        assert "SystemExit" in error
        correct, error = await ask(python="my_checks:waits")  # what it returns is true of any
        assert (correct, "asynchronous" in error) == (None, True)
        correct, error = await ask(python="nowhere.at_all:f")
        assert correct is None
        assert "ModuleNotFoundError" in error
        assert (await ask(python="my_checks:dies"))[0] is None
        assert await ask(python="my_checks:right") == (True, "")
        correct, error = await ask("a" * 60 + "!", regex="^(a+)+$")
        assert correct is None
        assert "longer than 1 s" in error
        assert await ask(python="my_checks:right") == (True, "")
        correct, error = await ask(python="my_checks:hangs")
        assert (correct, "longer" in error) == (None, True)


async def test_a_cancelled_check_does_not_answer_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_checks.py").write_text(
        "import pathlib, time\n"
        "def hangs(answer):\n    pathlib.Path(answer).touch()\n    time.sleep(600)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    started = tmp_path / "started"
    async with Judge(timeout_s=60) as judge:
        hanging = asyncio.create_task(judge.judge(spec(python="slow_checks:hangs"), str(started)))
        async with asyncio.timeout(30):
            while not started.exists():  # noqa: ASYNC110  # another process makes it
                await asyncio.sleep(0.01)
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        assert (await judge.judge(spec(regex="y"), "x")).correct is False


_INTERRUPTED = """
import asyncio, os, signal
from laar.measuring.checks import CheckSpec
from laar.measuring.judge import Judge

async def main():
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)
    async with Judge() as judge:
        for _ in range(2):
            print(await judge.judge(CheckSpec(regex="4"), "42"))
            os.killpg(0, signal.SIGINT)
            await asyncio.sleep(0.5)

asyncio.run(main())
"""


async def test_ctrl_c_is_left_to_the_measurement() -> None:
    """A terminal sends it to the whole process group; the judge would end with a traceback."""
    measuring = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _INTERRUPTED),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    async with asyncio.timeout(60):
        said, _ = await measuring.communicate()
    assert said.decode().splitlines() == 2 * ["Judgement(correct=True, error=None)"]
