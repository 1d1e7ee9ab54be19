"""The best order in which to send a batch (ContextPilot, algorithm 5).

Requests whose search paths begin alike share a region of the cache and are sent as one group. The
largest group is sent first and, within a group, the longest paths, because they cache what shorter
paths reuse. This takes O(N log N) time and needs all requests beforehand, so it suits batches only.
"""

from __future__ import annotations

from collections.abc import Sequence


def schedule(paths: Sequence[Sequence[int]]) -> list[int]:
    """Return the indexes of the requests in sending order.

    Ties within a group are broken by path, then by index; ties between groups, by the index of the
    first member. Requests without a path form one group.
    """
    groups: dict[int, list[int]] = {}
    for index, path in enumerate(paths):
        groups.setdefault(path[0] if path else -1, []).append(index)
    for group in groups.values():
        group.sort(key=lambda i: (-len(paths[i]), tuple(paths[i]), i))
    ordered = sorted(groups.values(), key=lambda group: (-len(group), group[0]))
    return [index for group in ordered for index in group]
