"""The simulator: an engine model, endpoints that speak vLLM, and a fleet in virtual time."""
