"""Carriers of records between pickers: a store, or the hub of `laar serve --workers`."""
