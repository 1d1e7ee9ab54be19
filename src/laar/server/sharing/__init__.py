"""The transport of records between pickers: a store."""
