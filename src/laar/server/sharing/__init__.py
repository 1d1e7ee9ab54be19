"""The carrier of records between pickers: a store."""
