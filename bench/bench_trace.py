"""Measure time and memory of reading a trace of ten million lines; memory must not grow.

The lines come through a pipe, since a file would take up a gigabyte; `laar lab replay` reads them
the same way. tests/sim/test_fleet_run.py checks that the fleet's memory does not grow either.
"""

from __future__ import annotations

import os
import resource
import tempfile
import threading
import time
from pathlib import Path

from laar_lab.trace import read_trace

LINES = 10_000_000


def feed(path: Path, count: int) -> None:
    with path.open("w") as file:
        for number in range(count):
            file.write(
                f'{{"timestamp": {number}, "input_length": 1500, "output_length": 20, '
                f'"hash_ids": [{number % 7}, {number % 97}, {number}]}}\n'
            )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        pipe = Path(folder) / "trace.jsonl"
        os.mkfifo(pipe)
        writer = threading.Thread(target=feed, args=(pipe, LINES))
        writer.start()
        began = time.process_time()
        for number, _ in enumerate(read_trace(pipe), 1):
            if number % (LINES // 10) == 0:
                peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                spent_s = time.process_time() - began
                print(f"{number:>12,} lines  {spent_s:7.1f} s of CPU  peak {peak_mib:6.1f} MiB")
        writer.join()


if __name__ == "__main__":
    main()
