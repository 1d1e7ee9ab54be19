"""The common parts of the commands `chaos`, `failing` and `soak`.

A *stand* is a fleet on loopback that can be made to fail: simulated endpoints, pickers and Envoy as
child processes (`stand`, `guard`). *Load* asks it questions with answers that can be checked to the
letter, and records how each request ended (`asking`, `load`). `trouble` has the faults for a stand,
and `judging` computes their cost.
"""
