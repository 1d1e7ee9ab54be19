"""`python -m laar.cli`."""

from laar.cli.app import app

app()
