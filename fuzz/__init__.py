"""Fuzzing: `python -m fuzz` says how. Never imported by the product."""
