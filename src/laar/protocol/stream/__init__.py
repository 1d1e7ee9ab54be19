"""One ext_proc stream without input or output: events in, actions out.

Read `phases` first: its table is the protocol. `machine` moves through it; `request_half` and
`answer_half` handle the events; `dialect` has the three ways in which Envoy speaks. The other
modules each do one step of the work. Contract: the endpoint-picker protocol v1.0.0.
"""

from laar.protocol.settings import StreamSettings
from laar.protocol.stream.body import PIECE_BYTES, HeldBytes
from laar.protocol.stream.machine import Stream
from laar.protocol.stream.state import Environment

__all__ = ["PIECE_BYTES", "Environment", "HeldBytes", "Stream", "StreamSettings"]
