"""Select the decisions to enforce; the others (shadow mode) are only made and recorded."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le

from laar.declaring import Applies


@dataclass(frozen=True, slots=True, kw_only=True)
class Enforcement:
    """Whether decisions are enforced."""

    applies: ClassVar = Applies.AT_ONCE

    mode: Literal["enforce", "shadow"] = "enforce"
    """`enforce` sends requests where the picker chose. `shadow` only records decisions; Envoy's
    own load balancing, or another picker's header, chooses the endpoint."""
    enforce_share: Annotated[float, Ge(0), Le(1)] = 1.0
    """In mode `enforce`, share of requests whose decision is enforced; the others are in shadow
    mode. Sampled by session (or by request if there is none), so no session changes mode."""

    @property
    def share(self) -> float:
        """Share of requests whose decision is enforced; others pass as if there were no picker."""
        return self.enforce_share if self.mode == "enforce" else 0.0

    @property
    def draw(self) -> Callable[[str], bool] | None:
        """Selects the requests whose decisions are enforced; None if all are."""
        return None if self.share >= 1.0 else self.enforces

    def enforces(self, key: str) -> bool:
        """Return whether to enforce decisions on requests of the session (or with the id) `key`.

        The choice is a hash of the key, so no session alternates between enforced and shadow, and a
        session enforced at one share is enforced at every larger share.
        """
        return zlib.crc32(key.encode()) < self.share * 2**32
