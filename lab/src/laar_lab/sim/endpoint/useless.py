"""Useless answers with status 200: the faults `html`, `empty` and `foreign-model`.

They are sent immediately: an engine that computes nothing is faster than any other.
"""

from __future__ import annotations

from starlette.responses import Response

from laar_lab.sim.endpoint.answering import Answer
from laar_lab.sim.endpoint.faults import FaultKind
from laar_lab.sim.endpoint.replies import Reply, Usage

USELESS = {FaultKind.HTML, FaultKind.EMPTY, FaultKind.FOREIGN_MODEL}
FOREIGN_MODEL = "another-model"
"""The answering model under the fault `foreign-model`."""

_PAGE = b"<!doctype html><title>Welcome</title><h1>It works!</h1>\n"


class Page(Response):
    """An HTML page, as if from a proxy in front of the engine."""

    def __init__(self) -> None:
        super().__init__(_PAGE, media_type="text/html")


class Useless(Response):
    """A well-formed answer without text, or from a foreign model.

    Args:
        answer: the text.
        reply: format of the output.
        prompt_tokens: length of the prompt.
        stream: whether to send it as a stream.
    """

    def __init__(self, answer: Answer, reply: Reply, *, prompt_tokens: int, stream: bool) -> None:
        text, finish = answer.text, answer.finish
        usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=answer.tokens, cached_tokens=0)
        if stream:
            chunks = reply.opening(usage), reply.piece(text, finish, usage)
            body = b"".join(chunks) + reply.closing(text, finish, usage)
        else:
            body = reply.whole(text, finish, usage)
        media_type = "text/event-stream" if stream else "application/json"
        super().__init__(body, media_type=media_type)
