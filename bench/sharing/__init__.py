"""The parts of `python -m bench sharing`."""
