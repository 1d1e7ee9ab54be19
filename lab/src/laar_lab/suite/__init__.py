"""Every workload on which the default policy has to hold its own, and how that is judged."""
