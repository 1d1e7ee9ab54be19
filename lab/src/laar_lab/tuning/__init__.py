"""The tuner: hill climbing over the cost's weights, evaluated on windows of requests."""
