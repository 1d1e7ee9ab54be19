"""laar and other routers by turns, in real time, on one fleet of engines: `laar race`.

Engines are a user's own or simulated, the traffic is a file or generated, and every router gets the
same requests, begins with nothing learned, and finds the engines' caches empty. What clients see is
kept request by request.
"""
