"""Explanations: the record of a decision, and a sentence that a person can read."""
