"""`python -m laar.cli`."""

from laar.cli import app

app()
