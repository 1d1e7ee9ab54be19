"""laar's own plug-ins (`laar.core.plugin`): the features that the core does not know."""

from __future__ import annotations

from laar.core.plugin import Plugin
from laar.plugins.adapters import Adapters
from laar.plugins.apart import PrefillApart
from laar.plugins.companions import Companions
from laar.plugins.deadly import DeadlyBodies
from laar.plugins.modes import Modes
from laar.plugins.pulls import Pulls
from laar.plugins.retrying import Retrying
from laar.plugins.server_timing import ServerTiming
from laar.plugins.session_token import SessionToken
from laar.plugins.shares import FairShares
from laar.plugins.stored import StoredObjects
from laar.plugins.swaps import Swaps
from laar.plugins.trying import Trying
from laar.plugins.windows import Windows


def own() -> list[Plugin]:
    """Return new plug-ins, in the order in which they are asked.

    Bodies that kill and what a request names come first, since it may end there. A mode changes
    the prompt that all others see, so modes come next. Prefill elsewhere and pulls reprice the
    prompt, so they come before what only adds seconds. A companion's cost is made of all seconds,
    and replaces them, so it comes after them. Tries look at the cost.
    """
    return [
        DeadlyBodies(),
        StoredObjects(),
        Modes(),
        Windows(),
        Retrying(),
        FairShares(),
        ServerTiming(asked=False),
        SessionToken(asked=False),
        PrefillApart(),
        Pulls(),
        Adapters(),
        Swaps(),
        Companions(),
        Trying(),
    ]
