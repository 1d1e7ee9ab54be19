"""Run a real SGLang on a CPU, without its kernels for GPUs (`make test-sglang`).

Its server, scheduler, radix cache, metrics and KV events are the real ones; torch's own kernels do
the arithmetic. What it imports of kernels is hollow (`without_kernels`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

import pytest
from vllm_server import Engine

PYTHON = os.environ.get("LAAR_SGLANG_PYTHON", "")
NEEDS_SGLANG = [
    pytest.mark.sglang,
    pytest.mark.skipif(
        not PYTHON, reason="NO SGLANG HERE: LAAR_SGLANG_PYTHON names a Python with SGLang 0.5.23"
    ),
]
"""Marks of tests that start an engine."""


class SGLang(Engine):
    """A running SGLang, which itself tells where its events are."""

    kind: ClassVar = "sglang"
    labels: ClassVar = {}
    options: ClassVar = ("--max-total-tokens", "12800")
    capacity_tokens, window = 12_800.0, 8192.0
    most, off = 0.62, 0.05  # largest share of two; what is believed cached less what is found

    def command(self, model: Path) -> tuple[list[str], dict[str, str]]:
        """Return the command that starts it, and its environment's variables."""
        command = [PYTHON, "-m", "sglang.launch_server", "--model-path", str(model)]
        command += ["--served-model-name", "tiny", "--load-format", "dummy", "--device", "cpu"]
        command += ["--attention-backend", "torch_native", "--disable-cuda-graph"]
        command += ["--disable-overlap-schedule", "--mem-fraction-static", "0.15"]
        command += ["--enable-metrics", "--enable-cache-report"]
        command += ["--kv-events-config", self.publishes()]
        return command, {
            "PYTHONPATH": str(Path(__file__).with_name("without_kernels")),
            "SGLANG_USE_CPU_ENGINE": "1",
            "SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES": "1",  # for the picker's priorities
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "DO_NOT_TRACK": "1",
        }
