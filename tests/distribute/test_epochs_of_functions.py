"""Functions that make a stream: what they read is told the epoch, also where only they name it."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

import torch_distinput as tdi
from torch_distinput.data.user_sources import epochs
from torch_distinput.data.user_sources.epochs import tell_epoch

COUNT = 12


def order_of(epoch):
    """Another one in each epoch."""
    return Random(epoch).sample(range(COUNT), COUNT)


class Keyed:
    """It plays the order of the epoch that it was told."""

    epoch = -1

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(order_of(self.epoch))


GLOBAL = Keyed()


def read_global():
    return iter(GLOBAL)


def read_by_another():
    yield from read_global()


def closing_over(keyed, *, complete=True):
    def rows():
        return (row for row in keyed if row is not none)

    if complete:
        none = None
    return rows


def with_a_default(keyed):
    def rows(keyed=keyed):
        return iter(keyed)

    return rows


def with_a_named_default(keyed):
    def rows(*, keyed=keyed):
        return iter(keyed)

    return rows


class Missing(dict):
    """A module that is imported late, say, or settings: it raises whatever it is asked for."""

    def __getattr__(self, name):
        raise ImportError(name)

    def values(self):
        raise KeyError


LATE = Missing(key=1)


def read_with_what_is_missing():
    for row in GLOBAL:
        yield row if "key" in LATE else LATE.anything


class Proxy:
    """Of what is not there yet, as of a request: it raises whatever it is asked for."""

    def __getattribute__(self, name):
        raise RuntimeError(name)

    def __iter__(self):
        raise RuntimeError


class ProxyOfAList(list):
    def __len__(self):
        raise RuntimeError


PROXIES = Proxy(), ProxyOfAList([1])
PROXY, PROXY_OF_A_LIST = PROXIES


def read_beside_proxies():
    for row in GLOBAL:
        yield row if row is not PROXY else (PROXY_OF_A_LIST, PROXIES)


class Progress:
    """It is no data, and asks for more."""

    def set_epoch(self, epoch, total):
        raise NotImplementedError


PROGRESS = Progress()


class Owner:
    """It has no rows but by a method."""

    epoch = -1

    def set_epoch(self, epoch):
        self.epoch = epoch

    def rows(self):
        return iter(order_of(self.epoch))


class Module:
    """It is no data itself."""

    def __init__(self):
        self.stream = Keyed()

    def rows(self):
        yield from self.stream

    def make(self):
        def rows():
            yield from self.stream

        return rows


MODULE = Module()


def read_attribute_of_a_global():
    return iter(MODULE.stream)


class Called(Module):
    """It is called as a function."""

    __call__ = Module.rows


@pytest.mark.parametrize(
    "rows",
    [
        read_global,
        read_by_another,
        with_a_default(Keyed()),
        with_a_named_default(Keyed()),
        read_with_what_is_missing,
        read_beside_proxies,
        Module().rows,
        Module().make(),
        read_attribute_of_a_global,
        Called(),
        Owner().rows,
        partial(Module().rows),
        closing_over(Keyed()),
        partial(iter, Keyed()),
        partial(lambda pair: iter(pair[0]), (Keyed(),)),
        partial(lambda kept: iter(kept["train"][0]), {"train": [Keyed()], "size": COUNT}),
    ],
)
def test_a_stream_that_a_function_makes(rows):
    """Each epoch has its order, though only the function knows of the dataset."""
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(rows, global_batch_size=COUNT)
    for epoch in range(3):
        assert [order_of(epoch)] == [list(batch) for batch in dataset]


def test_what_a_function_does_not_name_is_not_told():
    """Nor classes and modules, nor a name that it has no value for yet."""
    tell_epoch(closing_over(range(COUNT), complete=False), 3)
    tell_epoch(lambda: (Keyed, epochs, unknown), 3)  # noqa: F821
    assert -1 == Keyed.epoch
    tell_epoch(lambda: PROGRESS, 3)
    other = MODULE.stream.epoch
    tell_epoch(lambda: MODULE.rows, 99)
    assert other == MODULE.stream.epoch
    before = GLOBAL.epoch
    tell_epoch(lambda: epochs.GLOBAL, 99)  # of another module
    assert before == GLOBAL.epoch
