"""The simulator: an engine model, endpoints with vLLM's API, and a fleet in virtual time."""
