"""The contract of plug-ins: whatever point of one fails, requests and other plug-ins go on."""

import inspect

import pytest

from laar.core.decision import Completion
from laar.core.plugin import Part, Plugin
from laar.errors import RequestError
from support.directors import director_of
from support.requests import request_of

OK = Completion(status=200, cause="complete", latency_s=1.0)
POINTS = [
    name
    for name, of in vars(Plugin).items()
    if inspect.isfunction(of) and not name.startswith("_") and name != "join"
]
SAID = {"prescore", "price", "score", "pick"}
ALL_THE_TIME = SAID | {"admit", "filter", "select", "reserve", "complete"}


class Present(Plugin):
    """Takes part in everything, and remembers what it was asked."""

    name = "present"

    def __init__(self):
        self.asked = []

    def __getattribute__(self, point):
        if point in POINTS:
            object.__getattribute__(self, "asked").append(point)
        return object.__getattribute__(self, point)

    def admit(self, request, now):
        return None

    def filter(self, group, able, answering, now):
        return Part()

    def select(self, view, part, at):
        return part


Present.points = frozenset(POINTS)  # asked everywhere, though it overrides few


def failing(point):
    def fails(self, *_given):
        raise ZeroDivisionError

    given = {"filter": Present.filter, "select": Present.select}
    return type("Failing", (Plugin,), {"name": "failing", **given, point: fails})()


def serve(director, **fields):
    decision = director.decide(request_of("hello", model="m", **fields), 0.0)
    director.settle(decision, OK)
    for point in ("leave", "restarted"):
        director.plugins.ask(point, decision.slot)
    director.holds(decision.slot, 1.0)
    director.plugins.save()
    director.plugins.restore({"failing": [], "present": []})
    return decision


@pytest.mark.parametrize("point", POINTS)
def test_a_point_that_fails_leaves_its_plugin_out_and_is_counted(point):
    present = Present()
    d = director_of("a:1", "b:1", plugins=[failing(point), present])
    decision = serve(d, tried="x")
    assert decision.address in ("a:1", "b:1")
    assert set(present.asked) >= ALL_THE_TIME
    if point in ALL_THE_TIME:
        assert d.degraded["failing"] >= 1
    assert (decision.reason == "degraded-failing") == (point in SAID)
    assert not d.table.in_flight.any()


@pytest.mark.parametrize("point", ["admit", "prescore", "select"])
def test_only_an_error_for_the_client_refuses_a_request(point):
    def refuses(self, *_given):
        raise RequestError(409, "not-now", "not now")

    plugin = failing(point)
    setattr(type(plugin), point, refuses)
    d = director_of("a:1", plugins=[plugin])
    with pytest.raises(RequestError, match="not now"):
        serve(d, tried="x")
    assert not d.table.in_flight.any()
    assert not d.degraded
