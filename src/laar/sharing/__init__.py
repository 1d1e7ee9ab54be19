"""State that several pickers share: deltas, applied to the objects that decide."""
