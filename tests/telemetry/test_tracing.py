"""Which trace a decision joins: W3C Trace Context, and whose word counts."""

import random

import pytest

from laar.telemetry.tracing import Spans

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{PARENT}-01"


def spans(share=0.0):
    return Spans(None, share=share, rng=random.Random(1), wall_clock=lambda: 7.0)


@pytest.mark.parametrize(
    "parent",
    [
        SAMPLED,
        f"00-{TRACE}-{PARENT}-03",  # unknown flags beside the known one
        f"cc-{TRACE}-{PARENT}-01",  # versions to come
        f"cc-{TRACE}-{PARENT}-01-what-the-future-will-be-like",
    ],
)
def test_a_sampled_parent_is_joined(parent):
    trace = spans().join((), parent, "congo=t61rcWkgMzE")
    assert (trace.trace_id, trace.parent_id) == (TRACE, PARENT)
    assert (trace.state, trace.by_caller, trace.asked_s) == ("congo=t61rcWkgMzE", False, 7.0)
    assert trace.span_id not in (PARENT, "0" * 16)


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "nonsense",
        SAMPLED.upper(),
        f"00-{TRACE}-{PARENT}",
        f"00-{TRACE}-{PARENT}-1",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{TRACE}-{PARENT}-01.",
        f"cc-{TRACE}-{PARENT}-01.more",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}é-{PARENT}-01",
        SAMPLED + "\n",
        f" {SAMPLED}",
    ],
)
def test_what_is_no_parent_is_as_good_as_none(parent):
    assert spans().join((), parent, "") is None
    begun = spans(share=1.0).join((), parent, "")
    assert len(begun.trace_id) == 32
    assert begun.trace_id != TRACE
    assert begun.parent_id == ""


@pytest.mark.parametrize("flags", ["00", "02", "fe"])
def test_an_unsampled_parent_is_the_last_word(flags):
    assert spans(share=1.0).join((), f"00-{TRACE}-{PARENT}-{flags}", "") is None


def test_the_share_of_requests_without_a_trace_is_drawn():
    begin = spans(share=0.25)
    begun = [begin.join((), "", "") for _ in range(4000)]
    ids = {trace.trace_id for trace in begun if trace}
    assert 900 < len(ids) < 1100


def test_the_callers_span_of_the_call_counts_before_the_clients():
    client = f"00-{'1' * 32}-{PARENT}-01"
    called = (("user-agent", "envoy"), ("traceparent", SAMPLED), ("tracestate", "a=b"))
    trace = spans().join(called, client, "c=d")
    assert (trace.trace_id, trace.state, trace.by_caller) == (TRACE, "a=b", True)
    unsampled = (("traceparent", f"00-{TRACE}-{PARENT}-00"),)
    assert spans().join(unsampled, client, "") is None


@pytest.mark.parametrize("state", ["x" * 513, "a=é", "a=\n"])
def test_a_state_that_is_none_is_left_out(state):
    assert spans().join((), SAMPLED, state).state == ""
