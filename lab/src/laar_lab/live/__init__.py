"""Real-time experiments: a fleet on this machine behind a real Envoy."""
