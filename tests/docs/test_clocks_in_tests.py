"""No test depends on the machine's speed: what a clock measured is compared in the same run."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "time"}
WAITS = {"timeout", "wait_for"}


def reads_clock(node):
    """Return whether a call reads a clock: `time.monotonic()`, `loop.time()`, `process_time()`."""
    called = node.func if isinstance(node, ast.Call) else None
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name.removesuffix("_ns") in CLOCKS and not (node.args or node.keywords)


def measured(function):
    """Return the names that hold differences of clock readings; with ` -`, those of readings."""
    found, before = set(), -1
    readings = {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and reads_clock(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found.update(f"{name} -" for name in readings)
    while len(found) > before:
        before = len(found)
        for node in ast.walk(function):
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            value = getattr(node, "value", None)
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and value:
                names = [t for t in targets if isinstance(t, ast.Name | ast.Attribute)]
                if is_span(value, found):
                    found.update(t.id if isinstance(t, ast.Name) else t.attr for t in names)
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.attr in ("append", "add")
                and any(is_span(each, found) for each in node.args)
            ):
                found.add(node.func.value.id)
    return found


def is_span(node, names=frozenset()):
    """Return whether an expression is computed from a difference of clock readings."""
    for each in ast.walk(node):
        if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Sub):
            sides = (each.left, each.right)
            if any(reads_clock(s) or f"{getattr(s, 'id', '')} -" in names for s in sides):
                return True
        elif isinstance(each, ast.Name) and each.id in names:
            return True
    return False


def is_constant(node):
    """Return whether an expression holds only numbers, and names of constants or parameters."""
    allowed = (ast.Constant, ast.Name, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Load)
    return all(isinstance(each, allowed) for each in ast.walk(node))


def compares_speed(source):
    """Return the lines that assert that work took less than a constant.

    At least a constant may be asserted: whatever waits is never early.
    """
    tree = ast.parse(source)
    names = measured(tree)
    lines = []
    for node in ast.walk(tree):
        for test in ast.walk(node.test) if isinstance(node, ast.Assert) else ():
            if isinstance(test, ast.Compare) and len(test.ops) == 1:
                small, large = test.left, test.comparators[0]
                if isinstance(test.ops[0], ast.Gt | ast.GtE):
                    small, large = large, small
                if is_span(small, names) and is_constant(large) and not is_span(large, names):
                    lines.append(node.lineno)
    return lines


def test_no_test_asserts_that_something_takes_less_than_some_time():
    found = {
        f"{path.relative_to(TESTS)}:{line}"
        for path in TESTS.rglob("*.py")
        for line in compares_speed(path.read_text())
    }
    assert found == set()


@pytest.mark.parametrize("clock", ["time.monotonic()", "process_time()", "loop.time()"])
@pytest.mark.parametrize("limit", ["0.7", "LIMIT_S", "2 * longest_s + MARGIN_S"])
@pytest.mark.parametrize(
    "code",
    [
        "assert {clock} - began < {limit}",
        "assert {limit} >= {clock} - began",
        "end = {clock}\nassert end - began < {limit}",
        "took = {clock} - began\nassert took < {limit}",
        "took = []\ntook.append({clock} - began)\nassert min(took[1:]) < {limit}",
        "a = {clock} - began\nb = 2 * a\nassert done and b <= {limit}",
    ],
)
def test_such_an_assertion_is_found_in_any_form(code, clock, limit):
    assert compares_speed(code.format(clock=clock, limit=limit))
    assert not compares_speed(code.format(clock=clock, limit="f(work)"))
