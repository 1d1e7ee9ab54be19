"""Tables that tenants share: whatever one sets, another keeps what is within its share."""

import random
from collections import defaultdict

import pytest

from laar.latest import Shared


class Plain:
    """The same by the definition: a list, searched each time."""

    def __init__(self, most):
        self.most, self.kept = most, []

    def set(self, key, value):
        self.drop(key)
        self.kept.append((key, value))
        if len(self.kept) > self.most:
            of = defaultdict(list)
            for each, _ in self.kept:
                of[each[0]].append(each)
            longest = max(map(len, of.values()))
            return {keys[0] for keys in of.values() if len(keys) == longest}
        return set()

    def drop(self, key):
        self.kept = [pair for pair in self.kept if pair[0] != key]


@pytest.mark.parametrize("seed", range(20))
def test_the_oldest_entry_of_the_owner_with_most_is_dropped(seed):
    rng = random.Random(seed)
    most = rng.randint(1, 12)
    table, plain = Shared(most, lambda key, _value: key[0]), Plain(most)
    for number in range(300):
        key = rng.choice("aaaabbc"), rng.randrange(12)
        match rng.randrange(8):
            case 0:
                assert table.pop(key, None) == dict(plain.kept).get(key)
                plain.drop(key)
            case 1 if key in table:
                table.move_to_end(key)
                plain.set(key, table[key])
            case _:
                table[key] = number
                may_go = plain.set(key, number)
                gone = [each for each, _ in plain.kept if each not in table]
                assert set(gone) <= may_go
                assert len(gone) == bool(may_go)
                plain.drop(*gone) if gone else None
        assert list(table.items()) == plain.kept


@pytest.mark.parametrize("seed", range(10))
def test_an_owner_keeps_its_share_whatever_the_others_set(seed):
    rng = random.Random(seed)
    owners = rng.randint(2, 6)
    table = Shared(60, lambda _key, value: value)
    modest = [("mine", number) for number in range(60 // owners)]
    for key in modest:
        table[key] = 0
    for number in range(2000):
        table["theirs", number] = rng.randint(1, owners - 1)
    assert all(key in table for key in modest)
    assert len(table) == 60
