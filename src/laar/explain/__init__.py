"""Explain decisions with a record and a readable sentence."""
