"""Collectors: find endpoints, read their metrics and measure their round trips.

Each is an object with an endless ``run``; the runner connects them to the endpoint table.
"""
