"""laar: an Envoy endpoint picker that sends each request where a correct answer is expected soonest."""

