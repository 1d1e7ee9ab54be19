"""How long decodes wait during a prefill of a million tokens: Medha, sections 3.2 and 6.2.

A few conversations are decoding while one prompt of 1M tokens is prefilled, on 16 A100s. Medha's
chunks shrink so that an iteration meets its target; static chunks of 512 and 2,048 tokens take ever
longer as the context grows. All three use the stream pipeline, so only the chunks differ.

The paper gives no factor for this setup. It reports decode latencies of up to a second with static
chunks, and 250 ms with chunks of 512 tokens at a context of 1M on 8 H100s.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from laar_lab.claims import level, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.medha_runs import MEDHA, SARATHI
from laar_lab.report import Report, means_table
from laar_lab.sim.engine import EngineProfile, Job, build_engine, load_profile
from laar_lab.sweep import grid

_PROMPT_TOKENS = 1_000_000
_CHUNKS = (512, 2048)
_ROWS = ("adaptive", *(f"static {chunk}" for chunk in _CHUNKS))
_ENDLESS = 1_000_000
_SHOWN = {"p50_ms": "median", "p99_ms": "99 %", "longest_ms": "longest", "prefill_s": "prefill"}


def _profile(row: str) -> EngineProfile:
    if row == "adaptive":
        return load_profile(MEDHA)
    profile = load_profile(SARATHI)
    chunk = int(row.split()[1])
    settings = replace(
        profile.settings, max_num_batched_tokens=chunk, stream_pipeline=True, num_blocks=500_000
    )
    return replace(profile, settings=settings)


def gaps(row: str, prompt_tokens: int, seed: int) -> dict[str, float]:
    """Return the median, p99 and longest gap between decoded tokens, and the prefill's duration.

    The number of conversations, 4 to 32, differs by seed.
    """
    rng = random.Random(seed)
    profile = _profile(row)
    engine = build_engine(profile, seed=seed)
    conversations = [f"short-{number}" for number in range(rng.randint(4, 32))]
    for name in conversations:
        prompt = rng.randint(200, 8000)
        engine.submit(
            Job(id=name, arrival_s=0.0, prompt_tokens=prompt, output_tokens=_ENDLESS - prompt)
        )
    now = begun = 0.0
    last: dict[str, float] = {}
    found: list[float] = []
    while True:
        step = engine.step(now)
        assert step is not None  # conversations never end
        now += step.duration_s
        for gain in step.progress:
            if gain.job_id == "long":
                of_gaps = (1e3 * float(s) for s in np.percentile(found, [50.0, 99.0, 100.0]))
                return dict(zip(_SHOWN, (*of_gaps, now - begun), strict=True))
            if begun and gain.job_id in last:
                found.append(now - last[gain.job_id])
            last[gain.job_id] = now
        if not begun and len(last) == len(conversations):  # all are decoding
            begun = now
            engine.submit(
                Job(id="long", arrival_s=now, prompt_tokens=prompt_tokens, output_tokens=1)
            )


def run_iterations(scope: Scope) -> Report:
    """Run adaptive and static chunks with the same conversations."""
    prompt_tokens = _PROMPT_TOKENS // 4 if scope.quick else _PROMPT_TOKENS
    cases = {row: (row, prompt_tokens) for row in _ROWS}
    runs = grid(gaps, cases, scope.seeds, label="medha-iterations")
    title = f"ms between tokens during a prefill of {prompt_tokens:,} tokens, and its duration (s)"
    return Report(
        tables=[means_table(title, "chunks", runs, _SHOWN, digits=1)],
        evidence={
            "adaptive": {"": level(runs["adaptive"], "p99_ms")},
            "static": {row: level(runs[row], "p99_ms") for row in _ROWS[1:]},
            "prefill-kept": {
                row: paired(runs["adaptive"], runs[row], "prefill_s") for row in _ROWS[1:]
            },
        },
    )


EXPERIMENTS = declared(__name__, {"medha-iterations": run_iterations})
