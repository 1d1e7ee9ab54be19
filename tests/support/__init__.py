"""Code that tests of several packages share."""

from support.metrics import metric
from support.upstream import Answer, RecordedRequest, RecordingUpstream
from support.waiting import eventually, free_port, port_of

__all__ = [
    "Answer",
    "RecordedRequest",
    "RecordingUpstream",
    "eventually",
    "free_port",
    "metric",
    "port_of",
]
