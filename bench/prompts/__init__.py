"""Prompts as frameworks send them, with real text; see `python -m bench prompts`."""
