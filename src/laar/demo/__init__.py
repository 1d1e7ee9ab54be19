"""`laar up`: a whole fleet on one machine behind a real Envoy, to try laar and compare policies."""
