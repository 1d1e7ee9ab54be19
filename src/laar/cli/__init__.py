"""The commands of `laar`.

Each command imports its dependencies when called: `laar --help` must not load Envoy's message
types, and serving must not load scikit-learn.
"""

from laar.cli.app import app

__all__ = ["app"]
