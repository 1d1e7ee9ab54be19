"""LAAR: each model's accuracy on a request, its cost, and learning from outcomes.

Serving never imports `laar.accuracy.fitting`.
"""
