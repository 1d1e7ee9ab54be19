"""A scheduler for vLLM that orders prefills by relative slack.

`vllm serve MODEL --scheduler-cls laar_vllm.SlackScheduler --additional-config
'{"laar": {"seconds_per_token": 3e-5}}'`. vLLM is imported only on first access to `SlackScheduler`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from laar_vllm.plan import Candidate, Plan, StepSettings, plan, require_known_version

if TYPE_CHECKING:
    from laar_vllm.scheduler import SlackScheduler

__all__ = ["Candidate", "Plan", "SlackScheduler", "StepSettings", "plan", "require_known_version"]


def __getattr__(name: str) -> object:
    """Import `SlackScheduler` on first access, for vLLM's `--scheduler-cls`.

    Raises:
        ImportError: vLLM is not installed.
        ValueError: it has an unsupported version.
    """
    if name != "SlackScheduler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from vllm.version import __version__
    except ImportError as error:
        raise ImportError(
            "laar_vllm.SlackScheduler runs inside vLLM, which this Python does not have: install "
            "laar-vllm into vLLM's environment and start `vllm serve` there"
        ) from error
    require_known_version(__version__)
    from laar_vllm.scheduler import SlackScheduler

    return SlackScheduler
