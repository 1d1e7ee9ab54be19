"""Wrong metrics pages, for the faults ``metrics-...``.

A picker reads these pages once a second and must neither use implausible values nor crash. Each
wrong page is derived from the true one.
"""

from __future__ import annotations

import re

from laar_lab.sim.endpoint.faults import Fault, FaultKind

_SAMPLE = re.compile(rb"(?m)^([^#\n].*) \S+$")
_LOAD = re.compile(
    rb"(?m)^(vllm:(?:num_requests_running|num_requests_waiting|kv_cache_usage_perc)\{.*) \S+$"
)
_PADDING = b'vllm:padding_total{engine="0",n="%09d"} 1.0\n'
_HTML = b"<!doctype html><title>Sign in</title><p>This is not the page you asked for.\n"


def lie(fault: Fault, page: bytes, frozen: bytes) -> tuple[bytes, str]:
    """Return the page to serve instead of `page`, and its media type.

    Args:
        fault: a standing fault, of one of the kinds ``metrics-...``.
        page: the true page.
        frozen: the true page at the beginning of the fault.
    """
    media_type = "text/plain; version=0.0.4; charset=utf-8"
    if fault.kind is FaultKind.METRICS_FROZEN:
        return frozen, media_type
    if fault.kind is FaultKind.METRICS_IDLE:
        return _LOAD.sub(rb"\1 0.0", page), media_type
    if fault.kind is FaultKind.METRICS_NAN:
        return _SAMPLE.sub(rb"\1 NaN", page), media_type
    if fault.kind is FaultKind.METRICS_HUGE:
        wanted = int((fault.value or 1) * 2**20)
        lines = range(max(0, wanted - len(page)) // len(_PADDING % 0) + 1)
        return page + b"".join(_PADDING % n for n in lines), media_type
    if fault.kind is FaultKind.METRICS_TYPE:
        return _HTML, "text/html; charset=utf-8"
    return page, media_type
