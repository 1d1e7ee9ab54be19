"""Flow control based on Medha's paper: prefill times, slack orders, batch packing, the queue."""
