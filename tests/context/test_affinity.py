"""Scores of documents by the documents that they were seen with."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

_SCORES = """
import random
from laar.context.affinity import Affinity

rng, affinity = random.Random(1), Affinity()
docs = [rng.getrandbits(64) for _ in range(60)]
for now in range(300):
    affinity.observe(rng.sample(docs, 15), float(now))
print(sorted(affinity.likely(docs[:40], 300.0)[0].items()))
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="selects kernels of x86-64 by name")
def test_scores_are_equal_on_all_processors():
    # Otherwise pickers that share orders would break ties differently.
    seen = {
        subprocess.run(
            [sys.executable, "-c", _SCORES],
            env={**os.environ, "OPENBLAS_CORETYPE": kernel},
            check=True,
            capture_output=True,
        ).stdout
        for kernel in ("Prescott", "Nehalem", "Haswell", "SkylakeX")
    }
    assert len(seen) == 1
