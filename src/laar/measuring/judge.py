"""Checks that may hang or raise, in a process with a deadline.

A regular expression can back-track for ever while it holds the interpreter, and a user's function
can do anything, so neither a thread nor a timeout in this process would help. One child decides
one check at a time: a line of JSON in, a line out when its code is loaded, a line with the verdict.
Past its deadline it is killed, and the next check starts another. This keeps a measurement alive;
it is no sandbox: a function named in an evaluation set runs with the rights of `laar measure`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import re
import sys
from collections.abc import Callable, Coroutine
from typing import NamedTuple, TextIO

import orjson

from laar.measuring.checks import CheckSpec, decide

_LOAD_S = 30.0  # for the interpreter and the imports of the user's code: not the check's fault
_LOADED = b"loaded\n"
_MAX_LINE_BYTES = 2**16  # of a verdict


class Judgement(NamedTuple):
    """A verdict, or None with the reason why there is none."""

    correct: bool | None
    error: str | None = None


class Judge:
    """Decides checks; an async context manager that owns the child process."""

    def __init__(self, *, timeout_s: float = 5.0) -> None:
        self._timeout_s = timeout_s
        self._child: asyncio.subprocess.Process | None = None
        self._one_at_a_time = asyncio.Lock()

    async def __aenter__(self) -> Judge:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def judge(self, spec: CheckSpec, answer: str) -> Judgement:
        """Return the check's verdict on an answer."""
        if not spec.needs_process:
            return Judgement(decide(spec, answer))
        question = {"regex": spec.regex, "python": spec.python, "answer": answer}
        line = orjson.dumps(question, default=str, option=orjson.OPT_APPEND_NEWLINE)
        async with self._one_at_a_time:
            try:
                return await self._ask(line)
            except TimeoutError:
                await self._end()
                return Judgement(None, f"the check took longer than {self._timeout_s:g} s")
            except (OSError, ValueError) as fault:
                await self._end()
                return Judgement(None, f"the check's process broke off: {fault}")
            except asyncio.CancelledError:
                await self._end()  # its verdict would be taken for the next check's
                raise

    async def _ask(self, line: bytes) -> Judgement:
        if self._child is None or self._child.returncode is not None:
            self._child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "laar.measuring.judge",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_MAX_LINE_BYTES,
                start_new_session=True,  # Ctrl-C is for the measurement, which ends it
            )
        child = self._child
        assert child.stdin is not None
        assert child.stdout is not None
        async with asyncio.timeout(_LOAD_S):
            child.stdin.write(line)
            await child.stdin.drain()
            said = await child.stdout.readline()
        if said == _LOADED:
            async with asyncio.timeout(self._timeout_s):
                said = await child.stdout.readline()
        verdict = orjson.loads(said)
        return Judgement(verdict["correct"], verdict["error"])

    async def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.communicate()


def _serve(questions: TextIO, verdicts: TextIO) -> None:
    """Answer each line until the input ends; runs in the child."""
    for line in questions:
        question = orjson.loads(line)
        correct, error = None, None
        try:
            check = _loaded(question)
            verdicts.write(_LOADED.decode())
            verdicts.flush()
            verdict = check(question["answer"])
            if isinstance(verdict, Coroutine):
                verdict.close()
                raise TypeError("it is asynchronous")
            correct = bool(verdict)
        except BaseException as fault:  # noqa: BLE001  # the user's code may even call sys.exit
            error = f"the check raised {type(fault).__name__}: {fault}"[:1000]
        verdicts.write(orjson.dumps({"correct": correct, "error": error}).decode() + "\n")
        verdicts.flush()


def _loaded(question: dict[str, str]) -> Callable[[str], object]:
    if question["regex"] is not None:
        return re.compile(question["regex"]).search
    module, _, name = question["python"].partition(":")
    function: object = importlib.import_module(module)
    for part in name.split("."):
        function = getattr(function, part)
    assert callable(function), f"{question['python']} is not callable"
    return function


if __name__ == "__main__":
    verdicts_to, sys.stdout = sys.stdout, sys.stderr  # the output of a check is no verdict
    _serve(sys.stdin, verdicts_to)
