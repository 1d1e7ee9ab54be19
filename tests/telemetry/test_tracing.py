"""The trace that a decision joins, by W3C Trace Context, and the precedence of parents."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import SpanKind

from laar.telemetry.tracing import Spans

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{PARENT}-01"


def spans():
    return Spans("http://127.0.0.1:1/v1/traces")


@pytest.mark.parametrize(
    "parent",
    [
        SAMPLED,
        f"00-{TRACE}-{PARENT}-03",  # with additional, unknown flags
        f"cc-{TRACE}-{PARENT}-01",  # later versions
        f"cc-{TRACE}-{PARENT}-01-what-the-future-will-be-like",
    ],
)
def test_a_sampled_parent_is_joined(parent):
    trace = spans().join((), parent, "congo=t61rcWkgMzE")
    assert trace.trace_id == TRACE
    assert trace.span.parent.span_id == int(PARENT, 16)
    assert trace.span.kind is SpanKind.INTERNAL
    context = trace.span.get_span_context()
    assert context.trace_state.to_header() == "congo=t61rcWkgMzE"
    assert context.span_id not in (int(PARENT, 16), 0)


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "nonsense",
        SAMPLED.upper(),
        f"00-{TRACE}-{PARENT}",
        f"00-{TRACE}-{PARENT}-01-more",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
    ],
)
def test_an_invalid_parent_is_ignored(parent):
    assert spans().join((), parent, "") is None


@pytest.mark.parametrize("flags", ["00", "02", "fe"])
def test_an_unsampled_parent_is_respected(flags):
    assert spans().join((), f"00-{TRACE}-{PARENT}-{flags}", "") is None


def test_the_callers_span_takes_precedence_over_the_clients():
    client = f"00-{'1' * 32}-{PARENT}-01"
    called = (("user-agent", "envoy"), ("traceparent", SAMPLED), ("tracestate", "a=b"))
    trace = spans().join(called, client, "c=d")
    assert (trace.trace_id, trace.span.kind) == (TRACE, SpanKind.SERVER)
    assert trace.span.get_span_context().trace_state.to_header() == "a=b"
    unsampled = (("traceparent", f"00-{TRACE}-{PARENT}-00"),)
    assert spans().join(unsampled, client, "") is None


WRITTEN = st.text() | st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}.*")


@pytest.mark.long
@given(parent=WRITTEN, state=st.text() | st.from_regex(r"(\w+=\w*,?)+"), called=st.booleans())
def test_no_client_header_causes_an_error(parent, state, called):
    caller = (("traceparent", parent), ("tracestate", state)) if called else ()
    trace = JOINED.join(caller, parent, state)
    assert trace is None or len(trace.trace_id) == 32


JOINED = spans()
