"""Find the fields that name sessions, by the prompts that come with their values.

Clients name a conversation in many headers and members, and new ones appear every month. A field is
one of them if prompts with the same value continue each other, while those with different values
don't. The key of an application's cache is none: its prompts only begin alike.

Fields are judged for each tenant, so a client's fields mean nothing for others. A value may be a
secret, so a session is named by its hash.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from laar.latest import Latest, Shared
from laar.prefix.blocks import Chain
from laar.request import Request

_MAX_TENANTS = 256
"""Maximum number of tenants remembered; the least recent is forgotten."""

_MAX_FIELDS = 32
"""Maximum number of fields remembered for a tenant (4 MB for all); the least recent is dropped."""

_MAX_VALUES = 16_384
"""Maximum number of values remembered, over all fields (6 MB)."""

_ENOUGH = 3.0
"""Continued prompts that make a field a name, about a conversation of four turns."""

_LEAST_SHARE = 0.25
"""Share of the prompts with a known value that continue its last one in a field that is a name.
Agents replace the end of their prompts in about half of their turns."""

_KEPT = 0.98
"""Weight of earlier prompts at each new one."""

_End = tuple[int, int]
"""Number of blocks of a prompt, and its last hash."""


@dataclass(slots=True)
class _Field:
    """How many prompts continued the last one with their value of a field, and how many did not.

    `latest` is the latest value, with the end of its prompt.
    """

    continued: float = 0.0
    others: float = 0.0
    latest: tuple[str, _End] = ("", (0, 0))

    @property
    def is_name(self) -> bool:
        enough = self.continued >= _ENOUGH * _KEPT**4
        return enough and self.continued >= _LEAST_SHARE * (self.continued + self.others)


class SessionNames:
    """Learns which fields name sessions."""

    def __init__(self) -> None:
        self._fields: Latest[str, Latest[str, _Field]] = Latest(_MAX_TENANTS)
        self._values: Shared[tuple[str, str, str], _End] = Shared(
            _MAX_VALUES, lambda key, _end: key[0]
        )

    def name(self, request: Request) -> None:
        """Name the session of a request whose fields are known to name it."""
        fields: dict[str, _Field] = self._fields.get(request.tenant, {})
        for field, value in request.hints:
            known = fields.get(field)
            if known is not None and known.is_name:
                digest = blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8)
                request.session, request.named_by = f"{field}:{digest.hexdigest()}", field
                return

    def learn(self, request: Request, chain: Chain) -> None:
        """Learn from a request and its prompt."""
        if not chain.hashes:
            return
        end, tenant = (len(chain), chain.hashes[-1]), request.tenant
        fields = self._fields[tenant] = self._fields.get(tenant) or Latest(_MAX_FIELDS)
        for field, value in request.hints:
            of = fields.get(field) or _Field()
            before, (latest, latest_end) = self._values.get((tenant, field, value)), of.latest
            if latest != value and _is_in(latest_end, chain):
                of.others += 1.0 / _LEAST_SHARE  # a value for each request, or for each turn
            elif before is not None and before != end:
                of.continued *= _KEPT
                of.others *= _KEPT
                if _is_in(before, chain):
                    of.continued += 1.0
                else:
                    of.others += 1.0
            of.latest = value, end
            fields[field], self._values[tenant, field, value] = of, end


def _is_in(end: _End, chain: Chain) -> bool:
    """Return whether a prompt begins with all of the one that ended there."""
    blocks, hash_ = end
    return 0 < blocks <= len(chain) and chain.hashes[blocks - 1] == hash_
