"""The common parts of the benchmarks `chaos` and `failing`.

A *stand* is a fleet on loopback for fault injection: simulated endpoints, pickers and Envoy as
child processes (`stand`, `guard`). *Load* sends questions whose exact answers are known, and
records the outcome of each request (`asking`, `load`). `trouble` defines faults of a stand, and
`judging` computes their cost.
"""
