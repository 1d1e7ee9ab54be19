"""Scripted chat endpoints on loopback."""

from support.scripted_fleet import serve

__all__ = ["serve"]
