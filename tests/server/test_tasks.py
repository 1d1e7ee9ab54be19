"""The tasks of a running picker: a failed one is reported and restarted."""

import asyncio

from laar.datalayer.visits import cancel
from laar.server.tasks import Tasks
from laar.telemetry.problems import Problems
from support import eventually


async def test_a_failed_task_is_restarted_and_a_problem_until_it_keeps_running(monkeypatch):
    monkeypatch.setattr("laar.server.tasks.RESTART_S", 0.05)
    problems = Problems()
    tasks = Tasks(problems)
    began = []

    async def part():
        began.append(problems.current()["task"])
        await asyncio.sleep(0.01)
        if len(began) < 3:
            raise ZeroDivisionError
        await asyncio.Event().wait()

    tasks.spawn("part", part)
    try:
        await eventually(lambda: len(began) == 3, what="the third start")
        assert began == [0, 1, 1]
        assert problems.counts["task"] == 2
        await eventually(lambda: not problems, what="the end of the problem")
    finally:
        await tasks.cancel()


async def test_a_cancellation_while_waiting_for_other_tasks_is_propagated():
    """The sharing task once swallowed a cancellation at this point, and then ran forever."""
    ending, may_end = asyncio.Event(), asyncio.Event()

    async def slow_to_end():
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await may_end.wait()

    async def part():
        while True:
            child = asyncio.create_task(slow_to_end())
            await asyncio.sleep(0)
            await cancel([child])

    task = asyncio.create_task(part())
    await ending.wait()
    task.cancel()
    await asyncio.sleep(0)
    may_end.set()
    done, _ = await asyncio.wait([task], timeout=10.0)
    assert done
    assert task.cancelled()
