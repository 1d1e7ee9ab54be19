"""What `python -m bench sharing` is made of."""
