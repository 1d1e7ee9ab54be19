"""Measure models by asking each one questions with checkable answers."""
