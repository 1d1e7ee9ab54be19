"""LAAR: estimate each model's accuracy and speed on a request, and learn from outcomes.

Serving never imports `laar.accuracy.fitting`.
"""
