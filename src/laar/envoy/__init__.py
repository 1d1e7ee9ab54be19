"""Run Envoy with laar: bootstraps, the endpoints file, and Envoy as a child process."""
