"""The settings of the picker in a virtual-time run.

Defaults of the settings file are repeated here: importing `laar.settings` would make each run
depend on all that a file can set (`laar_lab.stale`); `tests/lab/test_suite.py` compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from laar.core.cost import CostWeights
from laar.core.decision import DirectorSettings, Retries
from laar.health import HealthSettings
from laar.plugins.apart import ApartRule, ApartSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """Settings of the picker in a run; the defaults are the settings file's.

    Args:
        policy: name of the policy.
        parameters: parameters of the policy that differ from its defaults.
        weights: weights of the cost.
        use_prefixes: whether to keep a prefix index.
        prefix_bytes: memory limit of the index.
        cached_as: what the picker knows about engines with a recurrent state. blocks: nothing, so
            a prompt counts as cached up to its last cached block; states: what their metrics
            pages say; events: also their KV events, which their settings must request.
        scrape_interval_s: seconds between two scrapes of an engine.
        probe_interval_s: seconds between two round-trip probes.
        retries: how a retry is placed; see `DirectorSettings`.
        wrong_answer_s: what a wrong answer costs a client that does not ask again.
        sample_answers: share of answers whose usage is read; 0 reads none.
        first_tokens: `seen` if the picker sees the first token of every answer, as in the gateway
            shape; `sampled` if only of the answers that it reads, as in the native shape.
        fallbacks: number of endpoints that Envoy may try next if one fails before its first byte.
        health: rules for excluding endpoints; None to consider all healthy.
        sample_every_s: longest time in seconds without reading an answer.
        apart: rule for prefilling and decoding at different endpoints.
        apart_tokens: threshold of the rule `threshold`.
        pulls: when an endpoint pulls cached KV from another. never; by-cost: as the picker decides;
            always: if another has more cached, as in llm-d, which the picker does not know.
        pickers: number of pickers; each request goes to a random picker.
        share_delay_s: seconds until other pickers get what one sends; None to share nothing.
    """

    policy: str = DirectorSettings().policy
    parameters: Mapping[str, object] = field(default_factory=dict)
    weights: CostWeights = field(default_factory=CostWeights)
    use_prefixes: bool = True
    prefix_bytes: int = 128 << 20
    cached_as: Literal["blocks", "states", "events"] = "states"
    scrape_interval_s: float = 1.0
    probe_interval_s: float = 5.0
    retries: Retries = DirectorSettings().retries
    wrong_answer_s: float | None = DirectorSettings().wrong_answer_s
    fallbacks: int = 0
    health: HealthSettings | None = field(default_factory=HealthSettings)
    sample_answers: float = 0.01
    sample_every_s: float = 0.25
    first_tokens: Literal["seen", "sampled"] = "seen"
    apart: ApartRule = ApartSettings().apart
    apart_tokens: int = ApartSettings().apart_tokens
    pulls: Literal["never", "by-cost", "always"] = "never"
    pickers: int = 1
    share_delay_s: float | None = None
