"""Flow control: prefill times, slack orders and batch packing as in Medha, queue and sessions."""
