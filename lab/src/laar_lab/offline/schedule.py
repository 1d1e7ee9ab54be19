"""The order in which a batch is best sent (ContextPilot, algorithm 5).

Requests whose search paths start alike share a region of the cache. Each such group is sent whole,
the largest first, and inside it longer paths first, because they fill what the shorter ones reuse.
O(N log N), and it needs all requests beforehand: it serves batches, never a request that waits.
"""

from __future__ import annotations

from collections.abc import Sequence


def schedule(paths: Sequence[Sequence[int]]) -> list[int]:
    """Indexes of the requests in sending order.

    Ties: inside a group by path, then by index; groups by the index of their first member. A
    request without a path belongs to the group of those without one.
    """
    groups: dict[int, list[int]] = {}
    for index, path in enumerate(paths):
        groups.setdefault(path[0] if path else -1, []).append(index)
    for group in groups.values():
        group.sort(key=lambda i: (-len(paths[i]), tuple(paths[i]), i))
    ordered = sorted(groups.values(), key=lambda group: (-len(group), group[0]))
    return [index for group in ordered for index in group]
