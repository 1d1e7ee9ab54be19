"""Pickers share what they learn: records of it, applied to the objects that decide."""
