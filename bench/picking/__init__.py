"""`python -m bench picker`: the pickers, the load and the parts."""
