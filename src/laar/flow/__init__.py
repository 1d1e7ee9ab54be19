"""Flow control after the Medha paper: prefill times, slack orders, batch packing and the queue."""
