"""What others know of prefixes: how much of a prompt, or whose context, an endpoint has cached.

`laar.prefix.beliefs` works it out.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from laar.prefix.blocks import Chain

Floats = npt.NDArray[np.float64]

Demand = tuple[Floats, Floats]
"""Depths in a prompt, as ascending shares of it, and the expected number of requests for each."""


class Prompt(Protocol):
    """The parts of a request that determine its prefix.

    Attributes:
        model: the model's name, for its chat template.
        spans: the prompt's texts in the order of most templates: system prompt, tools, messages.
        salt: differs between prompts that must not share anything.
        body: the request's body; empty if there is none.
        tokens: the prompt's length if sent as token ids; 0 if it must be estimated.
    """

    model: str
    spans: tuple[str, ...]
    salt: str
    body: bytes
    tokens: int


class PrefixMatch(NamedTuple):
    """The match of a prompt with the fleet's caches.

    Args:
        chain: the prompt.
        tokens: its length for each model.
        shares: share of it, in 0..1, that each slot has cached.
        demand: how many requests share which part of it; None if nothing is known.
        again: by slot, text evicted for the prompt that is requested again, as a share of the
            prompt's uncached part; None if every cache has room.
        fetched: for each slot, the share of the prompt that could be computed in the time it takes
            to fetch its copies from slower memory; None if no slot has any.
        left: share of it after which each slot would keep a recurrent state, because the prompt
            leaves there what is cached; None if no model has such states.
    """

    chain: Chain
    tokens: Floats
    shares: Floats
    demand: Demand | None
    again: Floats | None
    fetched: Floats | None
    left: Floats | None = None


class Grid(NamedTuple):
    """The places at which an engine may keep states.

    Args:
        block_tokens: tokens between two of them.
        unit_tokens: the same at the end of a prompt.
        everywhere: whether it keeps all of them.
    """

    block_tokens: int
    unit_tokens: int
    everywhere: bool = False


class Context(NamedTuple):
    """The context of a session's turn, in the cache of the endpoint that it was sent to.

    Args:
        session: key of the session, with its tenant and model.
        shared: how many of these tokens were already cached there for others.
        reread_s: cost of prefilling it again, in seconds.
    """

    session: str
    tokens: float
    shared: float
    reread_s: float
