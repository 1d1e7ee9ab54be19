"""The fleet of `laar up`: five simulated endpoints, the picker and Envoy, until a signal."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from rich.console import Console

from laar_lab.live.fleet import running_fleet


async def stay_up(console: Console, directory: Path, *, time_scale: float, port: int) -> None:
    """Start the fleet, print commands to try, and wait for a signal.

    Args:
        console: console for hints.
        directory: directory for settings and logs.
        time_scale: real seconds per simulated second.
        port: Envoy's port; 0 for a free port.
    """
    doing = "starting five simulated endpoints, the picker and Envoy"
    if not console.is_terminal:  # a status line shows only on a terminal
        console.print(doing)
    stopped = asyncio.Event()
    status = console.status(doing)
    status.start()
    async with running_fleet(directory, time_scale=time_scale, port=port) as fleet:
        status.stop()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
        body = '{"model": "auto", "messages": [{"role": "user", "content": "Hello"}]}'
        console.print(
            f"\nEnvoy listens on {fleet.url}. Try:\n\n"
            f"  curl -i {fleet.url}/v1/chat/completions -H 'content-type: application/json' "
            f"-d '{body}'\n"
            f"  curl -i {fleet.url}/v1/chat/completions -H 'content-type: application/json' "
            f"-H 'x-laar-policy: random' -d '{body}'\n"
            f"  curl {fleet.admin_url}/metrics\n\n"
            f"The live page is {fleet.admin_url}/\n"
            "Ctrl-C stops everything.",
            soft_wrap=True,
            highlight=False,
        )
        await stopped.wait()
