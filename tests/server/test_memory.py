"""Freed memory is kept, so that a large body can use it again."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

COPIES = """
import resource
from laar.server.memory import keep_freed
keep_freed()
def pass_through():
    body = bytes(400_000)
    return [body.decode() for _ in range(8)]
pass_through()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    pass_through()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_memory_pages_are_not_faulted_in_again_for_each_request() -> None:
    """Otherwise each of the hundred requests would take some 900 page faults."""
    faults = subprocess.check_output([sys.executable, "-c", COPIES])
    assert int(faults) < 1000
