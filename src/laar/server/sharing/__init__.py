"""Sharing of records between pickers, through a store."""
