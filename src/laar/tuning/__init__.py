"""The tuner: hill climbing over the cost's weights, judged on windows of requests."""
