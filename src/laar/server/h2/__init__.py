"""gRPC over HTTP/2 without gRPC's own server: an event-loop protocol over jh2's state machine.

Messages are handled and answered in the callback that reads their bytes, and what that causes is
written at once. Read `connection` first; `library` is jh2 as it is used, with `guard` before it;
`call` is one stream, `framing` knows gRPC's own bytes, and `listening` has the sockets and the
drain.
"""

from laar.server.h2.call import Call, Handler
from laar.server.h2.framing import CallError, Code
from laar.server.h2.listening import H2Server

__all__ = ["Call", "CallError", "Code", "H2Server", "Handler"]
