"""Explain decisions by a record and a readable sentence."""
