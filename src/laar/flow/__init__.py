"""Medha at the picker: prefill time, slack orders, batch packing and the queue."""

from __future__ import annotations

from laar.flow.item import Held, Item, Limits, Shed
from laar.flow.prefill_time import ChunkSeconds, PrefillTable, largest_chunk
from laar.flow.queue import Queue
from laar.flow.saturation import Loads, Saturation
from laar.flow.slack import (
    MIN_WORK_S,
    ORDERS,
    RHO_MAX,
    BatchCost,
    Line,
    Order,
    Prefill,
    height,
    pack,
    relative_slack,
    slack_s,
    turn,
)

__all__ = [
    "MIN_WORK_S",
    "ORDERS",
    "RHO_MAX",
    "BatchCost",
    "ChunkSeconds",
    "Held",
    "Item",
    "Limits",
    "Line",
    "Loads",
    "Order",
    "Prefill",
    "PrefillTable",
    "Queue",
    "Saturation",
    "Shed",
    "height",
    "largest_chunk",
    "pack",
    "relative_slack",
    "slack_s",
    "turn",
]
