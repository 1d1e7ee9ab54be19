"""Many pickers, one mind: deltas between pickers, applied to the objects that decide."""

from laar.sharing.settings import SharingSettings
from laar.sharing.sharing import Champion, Sharing

__all__ = ["Champion", "Sharing", "SharingSettings"]
