"""A gRPC server over HTTP/2: an asyncio protocol around jh2's state machine.

Messages are handled and answered in the callback that reads their bytes, and the resulting output
is written at once. Read `connection` first; `library` adapts jh2, with `guard` in front of it;
`call` is one stream, `framing` implements gRPC's message format, and `listening` the sockets and
the drain.
"""

from laar.server.h2.call import H2Call
from laar.server.h2.listening import H2Server
from laar.server.transport import Code, Handler

__all__ = ["Code", "H2Call", "H2Server", "Handler"]
