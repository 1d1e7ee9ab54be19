"""Medha at the picker: prefill times, slack orders, batch packing and the queue."""
