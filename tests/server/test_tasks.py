"""The tasks of a running picker: a part that fails is reported and started again."""

import asyncio

from laar.server.tasks import Tasks
from laar.telemetry.problems import Problems
from support import eventually


async def test_a_part_that_fails_starts_again():
    problems = Problems()
    tasks = Tasks(problems, restart_s=0.05)
    began = []

    async def part():
        began.append(problems.get("part"))
        if len(began) < 3:
            raise ZeroDivisionError
        await asyncio.Event().wait()

    tasks.spawn("part", part)
    try:
        await eventually(lambda: len(began) == 3, what="the third start")
        assert "part" not in problems
        assert problems.counts["part"] == 2
    finally:
        await tasks.cancel()
