"""Run the real command as a child process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

MODELS = ("phi3-mini", "granite-3.1-8b")


async def start(*arguments: str) -> asyncio.subprocess.Process:
    """Start `laar` with both outputs in one pipe."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "laar.cli", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"},
        preexec_fn=_heed_ctrl_c,
    )


def _heed_ctrl_c() -> None:
    """Handle SIGINT: tests in the background ignore it, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
