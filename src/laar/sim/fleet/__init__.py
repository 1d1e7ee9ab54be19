"""The fleet in virtual time: the product's director, simulated engines, links and clients."""

from laar.sim.fleet.assessor import MeasuredAssessor
from laar.sim.fleet.clients import (
    Answered,
    Conversation,
    Question,
    Turn,
    ask_until_correct,
    converse,
    hold_sessions,
    replay_open,
)
from laar.sim.fleet.clock import VirtualClock
from laar.sim.fleet.exchange import Exchange
from laar.sim.fleet.fleet import VirtualFleet
from laar.sim.fleet.link import Link, LinkProfile, generator
from laar.sim.fleet.operation import Operation
from laar.sim.fleet.prompts import BLOCK_TOKENS, Arrival, BlockPrefixes, Prompt, request_of, spread
from laar.sim.fleet.settings import FleetSettings
from laar.sim.fleet.site import EngineHost, Site

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
    "Operation",
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
