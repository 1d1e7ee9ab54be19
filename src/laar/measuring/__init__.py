"""Measuring models: questions with checkable answers, put to every model."""
