"""Experiments in real time: a fleet on this machine behind a real Envoy."""
