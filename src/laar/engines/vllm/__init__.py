"""The part of laar that runs inside vLLM: a relative-slack scheduler.

`vllm serve MODEL --scheduler-cls laar.engines.vllm.SlackScheduler --additional-config
'{"laar": {"seconds_per_token": 3e-5}}'`. vLLM is imported only on first access to `SlackScheduler`:
laar itself does not need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from laar.engines.vllm.plan import Candidate, Plan, StepSettings, plan, require_known_version
from laar.errors import SettingError

if TYPE_CHECKING:
    from laar.engines.vllm.scheduler import SlackScheduler

__all__ = ["Candidate", "Plan", "SlackScheduler", "StepSettings", "plan", "require_known_version"]


def __getattr__(name: str) -> object:
    """Import `SlackScheduler` on first access, for vLLM's `--scheduler-cls`.

    Raises:
        SettingError: vLLM is not installed, or has an unsupported version.
    """
    if name != "SlackScheduler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from vllm.version import __version__
    except ImportError as error:
        raise SettingError(
            "laar.engines.vllm.SlackScheduler runs inside vLLM, which this Python does not have: "
            "install laar into vLLM's environment (`pip install .` in a clone of laar) and start "
            "`vllm serve` there"
        ) from error
    require_known_version(__version__)
    from laar.engines.vllm.scheduler import SlackScheduler

    return SlackScheduler
