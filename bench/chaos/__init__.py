"""What the commands `chaos`, `failing` and `soak` have in common.

A *stand* is a fleet on loopback that can be made to fail: simulated endpoints, pickers and Envoy as
child processes (`stand`, `guard`). *Load* asks it questions with answers that can be checked to the
letter, and says of each request how it ended (`asking`, `load`). `trouble` knows what can be done
to a stand, and `judging` what that cost.
"""
