"""Explain decisions: the record of a decision, and a readable sentence."""
