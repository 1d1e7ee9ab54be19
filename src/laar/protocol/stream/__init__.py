"""State machine of one ext_proc stream, without I/O: events in, actions out.

Read `phases` first: its table defines the protocol. `machine` executes it, `request_half` and
`answer_half` handle the events, and `dialect` implements Envoy's body modes. Each other module does
one step. The contract is the endpoint-picker protocol v1.0.0.
"""

from laar.protocol.settings import StreamSettings
from laar.protocol.stream.body import CHUNK_BYTES, HeldBytes
from laar.protocol.stream.machine import Stream
from laar.protocol.stream.state import Environment

__all__ = ["CHUNK_BYTES", "Environment", "HeldBytes", "Stream", "StreamSettings"]
