"""`laar race`: run laar and other routers in turns, in real time, on one fleet of engines.

Engines are the user's or simulated, and the traffic is a file or generated. Every router gets the
same requests, starts with nothing learned, and finds the engines' caches empty. Each request is
recorded as its client saw it.
"""
