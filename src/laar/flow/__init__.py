"""Medha at the picker: prefill time, slack orders, batch packing and the queue."""
