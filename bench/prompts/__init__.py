"""Prompts as frameworks send them, over real text; see `python -m bench prompts`."""
