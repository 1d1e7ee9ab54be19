"""The default policy: one cost in seconds."""
