"""`laar race`: run laar and other routers in turns, in real time, on one fleet of engines.

The engines are the user's or simulated; the traffic is generated or comes from a file. Every router
gets the same requests, starts with nothing learned, and finds the engines' caches empty. Each
request is recorded as its client saw it.
"""
