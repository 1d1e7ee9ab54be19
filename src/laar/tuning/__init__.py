"""The tuner: a hill-climb over the cost's weights, judged by windows of requests."""
