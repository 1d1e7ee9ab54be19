"""The commands of `laar`.

Each imports what it needs when it is called: `laar --help` must not load an Envoy's worth of
message types, and serving must not load scikit-learn.
"""

from laar.cli.app import app

__all__ = ["app"]
