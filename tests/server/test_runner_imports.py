"""A serving picker does not load modules that only fitting, planning or the lab need."""

import subprocess
import sys

APART = ("laar.accuracy.fitting", "laar_lab.offline", "laar_lab", "laar_lab.sim", "sklearn")


def test_serving_loads_neither_fitting_nor_batch_algorithms():
    code = "import sys, laar.server.runner; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [name for name in ran.stdout.split() if name.startswith(APART)] == []
