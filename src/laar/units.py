"""Quantities as text."""


def duration(seconds: float) -> str:
    """Return a duration with two or three digits and its unit."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 0.1:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
