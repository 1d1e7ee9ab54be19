"""The engine model: one simulated inference engine, driven by a virtual or by a real clock."""
