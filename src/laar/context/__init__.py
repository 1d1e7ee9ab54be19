"""Reorder documents in prompts, so that prompts share longer prefixes (ContextPilot).

The hook (`ContextHook` over `OrderIndex`) receives one request at a time, has a few milliseconds,
and must never fail a request. The paper's algorithms for requests known beforehand are left out.

This package imports nothing, so that a picker without the hook loads only the settings.
"""
