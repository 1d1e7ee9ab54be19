"""The weights file: written by `laar tune --export`, used unchanged by `laar serve`.

    policy: laar
    weights: {k_rtt: 0.4, k_queue: 0.9, k_delay: 0.6}
    objective: e2e-p95
    cost_s: 2.31
    windows: [...]

Only `weights` is used; the other keys document where the numbers come from.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from laar.core.cost import TUNABLE
from laar.datalayer.document import line_of, read_with_lines
from laar.errors import SettingError, unknown

MAX_FILE_BYTES = 1 << 20
"""Maximum size of the file: some hundred windows. The tuner exports 64."""

_Weight = Annotated[float, Field(ge=0, le=1000)]


class WeightsFile(BaseModel):
    """A file of weights, and the windows they are based on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: str = "laar"
    weights: Annotated[dict[str, _Weight], Field(min_length=1)]
    objective: str = ""
    cost_s: float | None = None
    frozen: bool = True
    trials: int = 0
    windows: tuple[dict[str, Any], ...] = ()


def read_weights(path: Path) -> dict[str, float]:
    """Return the policy `laar`'s weights by name; weights not in the file keep their settings.

    Raises:
        SettingError: the file is unreadable, invalid or for another policy; names file and weight.
    """
    found, lines = read_with_lines(path, WeightsFile, max_bytes=MAX_FILE_BYTES)
    if found.policy != "laar":
        raise SettingError(f"{path}: weights of the policy `{found.policy}`; only `laar` has any")
    for name in found.weights:
        if name not in TUNABLE:
            where = f"{path}:{line_of(('weights', name), lines)}: weights.{name}"
            raise SettingError(f"{where}: {unknown('weight', name, TUNABLE)}")
    return found.weights
