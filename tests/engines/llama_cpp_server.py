"""Run llama.cpp's own server on a CPU (`make test-llama-cpp`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

import pytest
from vllm_server import Engine

PYTHON = os.environ.get("LAAR_LLAMA_CPP_PYTHON", "")
WHY = "NO llama.cpp HERE: LAAR_LLAMA_CPP_PYTHON names a Python with xllamacpp and gguf"
NEEDS_LLAMA_CPP = [pytest.mark.llama_cpp, pytest.mark.skipif(not PYTHON, reason=WHY)]
"""Marks of tests that start an engine."""


class LlamaCpp(Engine):
    """A running llama.cpp, with two slots."""

    kind: ClassVar = "llama.cpp"
    labels: ClassVar = {}
    options: ClassVar = ()
    capacity_tokens, window = None, 16_384.0
    most, off = 0.7, 0.1

    def command(self, model: Path) -> tuple[list[str], dict[str, str]]:
        """Return the command that starts it, and its environment's variables."""
        return [PYTHON, str(Path(__file__).with_name("llama_cpp_program.py")), str(model)], {}
