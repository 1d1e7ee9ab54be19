"""Run a test on laar's own transport and on the reference library."""

import pytest

TRANSPORTS = ["own", "grpc"]
on_both = pytest.mark.parametrize("transport", TRANSPORTS, indirect=True)
