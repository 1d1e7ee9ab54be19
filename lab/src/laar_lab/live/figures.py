"""The paper's two figures of a comparison: numbers first, then a plot of them.

Figure 3: for each policy, success rate against time to correct answer after one attempt, two, and
so on. Figure 4: by language and length, how much shorter the time to correct answer of the first
policy is than each other's, after the last attempt. Times of questions that were never answered
correctly count as far as they went (right-censored), as in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from laar.client import Outcome
        raise SettingError(f"--plot needs matplotlib; {install('lab')}") from None
