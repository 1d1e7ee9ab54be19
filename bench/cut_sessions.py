"""Write shorter recorded sessions, which start in the middle, for a race on small engines.

A race of half a minute that started every session at its first request would only see short
contexts. So each session starts at a random request, at least 20 before its end. Lengths are
divided by 4 and answers by 2, and pauses are at most 30 s. Sessions of under 8 requests, and
requests of over 60,000 tokens, are left out.

    python -m bench.cut_sessions agent-sessions.jsonl.gz agents.jsonl.gz
"""

from __future__ import annotations

import gzip
import json
import random
import sys
from typing import Any

DIVISOR = 4
MAX_TOKENS = 60_000
MAX_OUTPUT_TOKENS = 4000
MAX_PAUSE_S = 30.0


def main(source: str, out: str, seed: int = 1) -> None:
    """Write the shorter sessions of a file to another; both are compressed JSON lines."""
    sessions: dict[str, list[dict[str, Any]]] = {}
    with gzip.open(source, "rt") as lines:
        for line in lines:
            request = json.loads(line)
            if request["input_length"] // DIVISOR <= MAX_TOKENS:
                sessions.setdefault(request["session"], []).append(request)
    rng = random.Random(seed)
    with gzip.open(out, "wt") as file:
        for name, requests in sorted(sessions.items()):
            if len(requests) < 8:
                continue
            for request in requests[rng.randrange(max(1, len(requests) - 20)) :]:
                shorter = {
                    "session": name,
                    "think_s": min(request.get("think_s") or 0, MAX_PAUSE_S),
                    "input_length": max(1, request["input_length"] // DIVISOR),
                    "output_length": max(1, min(request["output_length"], MAX_OUTPUT_TOKENS) // 2),
                    "hash_ids": request["hash_ids"],
                }
                file.write(json.dumps(shorter) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
