"""Share what pickers learn: each sends records, and applies those of others to its own state."""
