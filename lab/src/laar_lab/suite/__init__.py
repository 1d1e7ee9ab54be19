"""The suite of workloads for the default policy, and how its results are judged."""
