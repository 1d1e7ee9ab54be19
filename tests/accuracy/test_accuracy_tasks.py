"""Limits on the tasks and cells that tenants may create."""

from laar.accuracy.features import Features
from laar.accuracy.online import OnlineOutcomes
from laar.accuracy.tasks import IDLE_S, MAX_TASKS, TaskNames


def test_the_first_tasks_of_a_tenant_and_all_known_tasks_are_accepted():
    names = TaskNames()
    names.known = frozenset(["code"])
    taken = [names.taken("a", f"task-{n}", 0.0) for n in range(2 * MAX_TASKS)]
    assert taken == [True] * MAX_TASKS + [False] * MAX_TASKS
    assert names.ignored == MAX_TASKS
    assert names.taken("a", "task-0", 1.0)
    assert names.taken("a", "code", 1.0)
    assert names.taken("b", "task-40", 1.0)  # another tenant has its own limit


def test_an_unused_task_makes_room():
    names = TaskNames()
    for n in range(MAX_TASKS):
        assert names.taken("a", f"task-{n}", float(n))
    assert not names.taken("a", "new", IDLE_S - 1.0)
    assert names.taken("a", "new", IDLE_S)
    assert not names.taken("a", "task-0", IDLE_S)


def test_a_tenant_that_fills_its_cells_leaves_room_for_others(monkeypatch):
    monkeypatch.setattr("laar.accuracy.online.MAX_CELLS_OF_TENANT", 10)
    online = OnlineOutcomes()

    def cell(n):
        return Features("en", 4096, f"task-{n}")

    taken = [online.observe("m", cell(n), True, 0.0, tenant="a") for n in range(15)]
    assert taken == [True] * 10 + [False] * 5
    # Existing cells still accept outcomes.
    assert online.observe("m", cell(3), False, 1.0, tenant="a")
    assert online.observe("m", cell(99), True, 1.0, tenant="b")
    assert online.refused == 5


def test_forgotten_cells_free_room_for_their_tenant(monkeypatch):
    monkeypatch.setattr("laar.accuracy.online.MAX_CELLS_OF_TENANT", 2)
    online = OnlineOutcomes(half_life_s=60.0)
    for n in range(2):
        assert online.observe("m", Features("en", 4096, f"t{n}"), True, 0.0, tenant="a")
    assert not online.observe("m", Features("en", 4096, "t2"), True, 1.0, tenant="a")
    assert online.observe("m", Features("en", 4096, "t2"), True, 100_000.0, tenant="a")
    assert len(online.cells) == 1
