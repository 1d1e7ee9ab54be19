"""Fitting: from outcomes to a capability artifact. Serving never imports this package."""
