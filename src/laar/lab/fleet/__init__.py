"""The fleet in virtual time: the product's director, simulated engines, links and clients."""

from laar.lab.fleet.assessor import MeasuredAssessor
from laar.lab.fleet.clients import (
    Answered,
    Conversation,
    Question,
    Turn,
    ask_until_correct,
    converse,
    hold_sessions,
    replay_open,
)
from laar.lab.fleet.clock import VirtualClock
from laar.lab.fleet.fleet import Exchange, FleetSettings, VirtualFleet, generator
from laar.lab.fleet.link import Link, LinkProfile
from laar.lab.fleet.prompts import BLOCK_TOKENS, Arrival, BlockPrefixes, Prompt, request_of, spread
from laar.lab.fleet.site import EngineHost, Site

__all__ = [
    "BLOCK_TOKENS",
    "Answered",
    "Arrival",
    "BlockPrefixes",
    "Conversation",
    "EngineHost",
    "Exchange",
    "FleetSettings",
    "Link",
    "LinkProfile",
    "MeasuredAssessor",
    "Prompt",
    "Question",
    "Site",
    "Turn",
    "VirtualClock",
    "VirtualFleet",
    "ask_until_correct",
    "converse",
    "generator",
    "hold_sessions",
    "replay_open",
    "request_of",
    "spread",
]
