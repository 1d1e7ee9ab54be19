"""The subjects, the load and the parts of `python -m bench picker`."""
