"""The fleet in virtual time: the production director, simulated engines, links and clients."""

from laar_lab.sim.fleet.assessor import MeasuredAssessor
from laar_lab.sim.fleet.clients import (
    Answered,
    Conversation,
    Question,
    Send,
    Turn,
    ask_until_correct,
    asking_again,
    converse,
    hold_sessions,
    replay_open,
)
from laar_lab.sim.fleet.exchange import Exchange
from laar_lab.sim.fleet.fleet import VirtualFleet
from laar_lab.sim.fleet.link import Link, LinkProfile, generator
from laar_lab.sim.fleet.operation import Operation
from laar_lab.sim.fleet.prompts import (
    BLOCK_TOKENS,
    Arrival,
    BlockPrefixes,
    Prompt,
    request_of,
    spread,
)
from laar_lab.sim.fleet.settings import FleetSettings
from laar_lab.sim.fleet.site import Site

__all__ = [
    "BLOCK_TOKENS",
    "Answered",
    "Arrival",
    "BlockPrefixes",
    "Conversation",
    "Exchange",
    "FleetSettings",
    "Link",
    "LinkProfile",
    "MeasuredAssessor",
    "Operation",
    "Prompt",
    "Question",
    "Send",
    "Site",
    "Turn",
    "VirtualFleet",
    "ask_until_correct",
    "asking_again",
    "converse",
    "generator",
    "hold_sessions",
    "replay_open",
    "request_of",
    "spread",
]
