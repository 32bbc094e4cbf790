"""An epoch is stopped after every step and goes on with every cluster, twice."""

from __future__ import annotations

import itertools
import json
from functools import cache

import pytest

from tests.plan.epochs import (
    CLUSTERS,
    DATA,
    FILE,
    OFF,
    Cluster,
    Setting,
    begin,
    play,
    rest_of,
    resume,
)
from torch_distinput.options import Rebatch
from torch_distinput.plan.progress.packing import pack_items, unpack_items
from torch_distinput.plan.progress.state import from_state, to_state

LISTS = [
    lengths for count in range(1, 7) for lengths in itertools.product(range(4), repeat=count)
]
MODES = list(itertools.product(Rebatch, (True, False), (4, 3, 1, 5, 2)))
STRIDE, LONG_STRIDE = 241, 7
"""All 5,460 lists take half an hour: each 241st is played, and each 7th in the long run. Both are
prime to the 30 modes, so every mode comes up."""
THIRDS = [Cluster(1, 2), Cluster(2, 1), Cluster(3, 2)]
"""Of a third leg only what is left is looked at, and that does not depend on replicas."""


def choose(stride, policy):
    """Some lists of files, with the modes in turn: rebatch, are lengths known, and batch size."""
    for number in range(0, len(LISTS), stride):
        rebatch, known, size = MODES[number % len(MODES)]
        yield Setting(LISTS[number], policy, rebatch, size, known)


def check(setting):
    """All first legs of an epoch; from each of their steps all second legs, then all third.

    Returns from how many places it was gone on. Where several legs come to the same place with the
    same rows delivered, what follows is the same, and is looked at once.
    """
    known = set()

    def is_new(leg, cluster, position, delivered):
        rows = delivered if setting.policy is OFF else tuple(sorted(delivered))
        num_known = len(known)
        known.add((leg, cluster, position, rows))
        return len(known) > num_known

    for first in CLUSTERS:
        if setting.policy is FILE and first.num_workers > len(setting.lengths):
            continue  # refused
        for delivered, position in follow(setting, first, begin(setting, first), ()):
            for second in followers(setting, first, CLUSTERS):
                start = resume(setting, second, position)
                if not is_new(2, second, start, delivered):
                    continue
                for so_far, later in follow(setting, second, start, delivered):
                    for third in followers(setting, second, THIRDS):
                        if is_new(3, third, later, so_far):
                            check_rest(setting, third, resume(setting, third, later), so_far)
    return len(known)


def followers(setting, cluster, clusters):
    """The clusters that can go on: under OFF every worker has a stream that no other continues."""
    same = (other for other in clusters if other.num_workers == cluster.num_workers)
    return same if setting.policy is OFF else clusters


def follow(setting, cluster, before, delivered):
    """Play a leg to its end; return the places to stop at, and what was delivered by then."""
    prefixes = [(delivered, before)]
    for step in play(setting, cluster, before):
        delivered = merge(setting, delivered, step.rows)
        check_state(step.after)
        prefixes.append((delivered, step.after))
    check_rest(setting, cluster, prefixes[-1][1], delivered)
    num_left = sum(map(len, rest_of(setting, cluster, prefixes[-1][1])))
    assert setting.drop_last or not num_left
    return prefixes


def merge(setting, delivered, rows):
    """What was delivered so far: under OFF by each worker, else by all together."""
    if setting.policy is OFF:
        before = delivered or ((),) * len(rows)
        return tuple((*one, *own) for one, own in zip(before, rows, strict=True))
    return (*delivered, *itertools.chain.from_iterable(rows))


def check_rest(setting, cluster, position, delivered):
    """Each row has been delivered once, or will be; where order is promised, in that order."""
    rest, everything = rest_of(setting, cluster, position), list(range(setting.num_rows))
    if setting.policy is DATA:
        assert everything == [*delivered, *rest[0]]
    elif setting.policy is OFF:
        for before, own in zip(delivered or ((),) * len(rest), rest, strict=True):
            assert everything == [*before, *own]
    else:
        assert everything == sorted(itertools.chain(delivered, *rest))


def check_state(position):
    """A position survives JSON."""
    state = to_state(position, {})
    assert position == read_state(json.dumps(state))
    for name in ("rows", "reaches", "streams", "deals"):
        check_packed(json.dumps(state[name]))


@cache
def read_state(text):
    """The position of a state; many legs write the same."""
    return from_state(json.loads(text))


@cache
def check_packed(text):
    """A list of a state survives the short form that it has when there are many workers."""
    items = json.loads(text)
    assert items == unpack_items(pack_items(items))


POLICIES = pytest.mark.parametrize("policy", [FILE, DATA, OFF])


@POLICIES
def test_every_row_is_delivered_once(policy):
    """Wherever an epoch is stopped, and whoever goes on with it, and again."""
    assert sum(map(check, choose(STRIDE, policy))) > 10_000


@pytest.mark.long
@POLICIES
def test_every_row_is_delivered_once_of_many_more_lists(policy):
    assert sum(map(check, choose(LONG_STRIDE, policy))) > 300_000


@POLICIES
def test_drop_last_leaves_out_less_than_a_batch_of_each_stream(policy):
    """And what one cluster would have left out, another may still deliver."""
    for setting in choose(STRIDE, policy):
        setting = setting._replace(drop_last=True)  # noqa: PLW2901
        for cluster in CLUSTERS:
            if policy is FILE and cluster.num_workers > len(setting.lengths):
                continue
            delivered, position = follow(setting, cluster, begin(setting, cluster), ())[-1]
            for rest in rest_of(setting, cluster, position):
                assert len(rest) < setting.size
            for other in followers(setting, cluster, CLUSTERS):
                follow(setting, other, resume(setting, other, position), delivered)
