"""laar: an Envoy endpoint picker that sends requests where a correct answer is expected soonest."""
