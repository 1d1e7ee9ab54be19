"""State shared between pickers: deltas, applied to the objects that decide."""
