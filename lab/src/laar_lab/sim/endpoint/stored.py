"""Answers that an endpoint stores, as vLLM does with its response store enabled.

Unlike in vLLM, an answer is considered stored as soon as its request is accepted.
"""

from __future__ import annotations

from collections import OrderedDict

import orjson

from laar_lab.sim.endpoint.answering import Answer
from laar_lab.sim.endpoint.bodies import Prompt
from laar_lab.sim.endpoint.errors import ApiError
from laar_lab.sim.endpoint.replies import Reply, Usage

MAX_STORED = 1024
"""Maximum number of exchanges to store; the oldest is dropped first. vLLM keeps all."""


class StoredResponses:
    """The exchanges of an endpoint since its last restart, by response id."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[str, bytes]] = OrderedDict()

    def keep(self, prompt: Prompt, answer: Answer, reply: Reply) -> None:
        """Store an exchange."""
        usage = Usage(prompt_tokens=prompt.tokens, completion_tokens=answer.tokens, cached_tokens=0)
        text = answer.piece(0, answer.tokens)
        whole = reply.whole(text, answer.finish, usage)
        self._kept[orjson.loads(whole)["id"]] = f"{prompt.text}{text}\n", whole
        if len(self._kept) > MAX_STORED:
            self._kept.popitem(last=False)

    def earlier(self, response_id: str) -> str:
        """Return the text of an exchange: its prompt and its answer.

        Raises:
            ApiError: 404 if the response is not stored.
        """
        return self._find(response_id)[0]

    def whole(self, response_id: str) -> bytes:
        """Return the answer's body.

        Raises:
            ApiError: 404 if the response is not stored.
        """
        return self._find(response_id)[1]

    def _find(self, response_id: str) -> tuple[str, bytes]:
        found = self._kept.get(response_id)
        if found is None:
            text = f"Response with id '{response_id}' not found."
            raise ApiError(404, text, param="response_id")
        return found
