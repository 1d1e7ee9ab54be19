"""Directors that share their knowledge over channels that a test controls."""

import random
from collections import deque

from laar.accuracy.online import OnlineOutcomes
from laar.fleet.membership import EndpointSpec
from laar.health import Health, HealthSettings
from laar.prefix.beliefs import PrefixBeliefs
from laar.sharing.settings import SharingSettings
from laar.sharing.sharing import Sharing
from support.directors import director_of
from support.requests import request_of

KEY = b"k" * 16
SETTINGS = SharingSettings()


def request(text="hello " * 50, number="r"):
    return request_of(text, id=number, first_token_seen=True)


def specs(*addresses):
    return [EndpointSpec(address=address, models=("m",)) for address in addresses]


def sharing_picker(
    name, addresses, *, settings=SETTINGS, seed=1, key=KEY, wall_clock=lambda: 0.0, **options
):
    """Return the sharing of a director with prefixes, health and outcomes."""
    director = director_of(
        *addresses,
        seed=seed,
        prefixes=PrefixBeliefs(key=key, max_bytes=8 << 20),
        health=Health(HealthSettings(), rng=random.Random(seed)),
    )
    return Sharing(
        director,
        settings,
        origin=name,
        key=key,
        wall_clock=wall_clock,
        **{"online": OnlineOutcomes()} | options,
    )


def all_batches(sender, now):
    """Return a complete backlog, which takes several calls."""
    made = sender.batches(now)
    while sender.outbox.waiting_bytes:
        made += sender.batches(now)
    return made


class Network:
    """A channel from each picker to every other one; batches arrive only at `deliver`."""

    def __init__(self, pickers):
        self.pickers = pickers
        self.channels = {
            (a.origin, b.origin): deque() for a in pickers for b in pickers if a is not b
        }

    def flush(self, sender, now):
        for data in all_batches(sender, now):
            for (origin, _), channel in self.channels.items():
                if origin == sender.origin:
                    channel.append(data)

    def deliver(self, now):
        by_name = {picker.origin: picker for picker in self.pickers}
        for (_, to), channel in self.channels.items():
            while channel:
                data = channel.popleft()
                if to in by_name:
                    by_name[to].take(data, now)

    def exchange(self, now):
        for picker in self.pickers:
            self.flush(picker, now)
        self.deliver(now)
        for picker in self.pickers:
            picker.poll(now)


class Log:
    """A stream that each picker reads at its own pace, as from a store or a hub."""

    def __init__(self, pickers):
        self.pickers = pickers
        self.entries = []
        self.read = {picker.origin: 0 for picker in pickers}

    def flush(self, sender, now):
        self.entries += all_batches(sender, now)

    def deliver_one(self, picker, now):
        if self.read[picker.origin] < len(self.entries):
            data = self.entries[self.read[picker.origin]]
            self.read[picker.origin] += 1
            picker.take(data, now)
            return True
        return False

    def exchange(self, now):
        for picker in self.pickers:
            self.flush(picker, now)
        for picker in self.pickers:
            while self.deliver_one(picker, now):
                pass
            picker.poll(now)
