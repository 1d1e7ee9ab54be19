"""`laar evaluate`: judge an artifact on graded answers."""
