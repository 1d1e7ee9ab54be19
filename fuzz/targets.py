"""All targets by name: a function that takes bytes and raises where it finds something."""

from __future__ import annotations

from collections.abc import Callable

from fuzz.bodies import bodies, context, members
from fuzz.frames import frames
from fuzz.pages import answers, artifact, batches, events, files, headers, messages, metrics, state
from fuzz.streams import streams

__all__ = ["TARGETS", "Target"]

Target = Callable[[bytes], None]

TARGETS: dict[str, Target] = {
    target.__name__: target
    for target in (
        answers,
        artifact,
        batches,
        bodies,
        context,
        events,
        files,
        frames,
        headers,
        messages,
        metrics,
        members,
        state,
        streams,
    )
}
