"""Envoy beside laar: bootstraps, the endpoints file, and a real Envoy as a child process."""
