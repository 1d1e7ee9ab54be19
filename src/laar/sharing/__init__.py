"""Many pickers, one mind: deltas between pickers, applied to the objects that decide."""
