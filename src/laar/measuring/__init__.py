"""Measure models by asking each of them questions with checkable answers."""
