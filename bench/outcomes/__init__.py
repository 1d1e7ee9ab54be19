"""Real clients, routers and proxies on simulated engines, in real time; see `bench_outcomes`."""
