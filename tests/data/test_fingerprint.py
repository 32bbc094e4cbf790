"""Fingerprints of objects: by content where that can be had, and the same in every process."""

from __future__ import annotations

import collections
import copyreg
import datetime as dt
import functools
import os
import pathlib
import random
import re
import subprocess
import sys
import threading
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from torch_distinput.data.batch import object_parts
from torch_distinput.data.batch.fingerprint import Digest, examine, fingerprint


class Plain:
    """Attributes only."""

    def __init__(self, **attributes):
        vars(self).update(attributes)


class Slotted:
    """No ``__dict__``."""

    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


class Image:
    """Says what it is as an image of PIL does."""

    def __init__(self, pixel):
        self._pixels = np.full((2, 2), pixel, dtype=np.uint8)
        self.memory = {"address": self._pixels.ctypes.data}

    @property
    def __array_interface__(self):
        """The address of the pixels is in it."""
        return self._pixels.__array_interface__


class Made:
    """Its interface is made when it is made."""

    def __init__(self, pixel):
        self._pixels = np.full(4, pixel)
        self.__array_interface__ = self._pixels.__array_interface__


class Lazy:
    """An array once it is asked for."""

    nbytes = 8

    def __init__(self, value):
        self._value = value
        self._lock = threading.Lock()

    def __array__(self, dtype=None, copy=None):
        """Make it."""
        return np.array(self._value)


class Registered:
    """Pickled by a function of somebody else's."""

    __slots__ = ("hidden",)

    def __init__(self, hidden):
        self.hidden = hidden


copyreg.pickle(Registered, lambda value: (Registered, (value.hidden,)))


class Moody:
    """Another one whenever it is asked."""

    def __init__(self, x):
        self.x = x

    def __getstate__(self):
        """Never the same."""
        return random.random()


class Word(str):  # noqa: SLOT000 - as a user would
    """A text with a name of its own."""

    def __repr__(self):
        return f"<Word at {id(self)}>"

    def __str__(self):
        return repr(self)


@dataclass
class Labelled:
    """A container."""

    image: object
    label: int = 0


KINDS = {
    "attributes": lambda i: Plain(x=i, inner=Plain(y=[i])),
    "slots": Slotted,
    "image": Image,
    "interface of its own": Made,
    "lazy array": Lazy,
    "registered": Registered,
    "dataclass": lambda i: Labelled(Image(i)),
    "set": lambda i: {f"a{i}", "b", "c", "d", (1, i)},
    "set of sets": lambda i: frozenset({frozenset({"x", f"y{i}"}), frozenset({"z"})}),
    "set in an object": lambda i: Plain(tags={f"a{i}", "b", "c", "d"}),
    "mapping with odd keys": lambda i: {frozenset({"a", "b"}): i, 3: "c", None: 4},
    "counter": lambda i: collections.Counter({f"w{i}": 2, "v": 1}),
    "user dict": lambda i: collections.UserDict(x=i),
    "date": lambda i: dt.date(2020, 1, 1 + i),
    "path": lambda i: pathlib.PurePosixPath(f"/a/{i}"),
    "pattern": lambda i: re.compile(f"a{i}"),
    "partial": lambda i: functools.partial(max, i),
    "deque": lambda i: collections.deque([i, "x"]),
    "buffer": lambda i: bytearray([i]),
    "array of objects": lambda i: np.array([Plain(x=i), None], dtype=object),
    "array of dates": lambda i: np.array([i], dtype="M8[D]"),
    "subclass of str": lambda i: Word(f"w{i}"),
    "large integer": lambda i: 10**5000 + i,
    "many large integers": lambda i: [10**30 + i] * 20,
    "lone surrogate": lambda i: f"\udc80{i}" + 300 * "a",
    "tokens": lambda i: [*range(100), i],
    "sparse": lambda i: torch.tensor([0.0, 1.0 + i]).to_sparse(),
    "bfloat16": lambda i: torch.tensor([1.0 + i], dtype=torch.bfloat16),
    "one row of bfloat16": lambda i: torch.full((1, 2), 1.0 + i, dtype=torch.bfloat16)[:, 1],
    "beside a lock": lambda i: Plain(lock=threading.Lock(), x=i),
}


@pytest.mark.parametrize("kind", KINDS)
def test_objects_count_by_content(kind):
    """Equal content, equal number; other content, another one."""
    make = KINDS[kind]
    assert fingerprint(make(1)) == fingerprint(make(1)) != fingerprint(make(2))


CODE = """
from tests.data.test_fingerprint import KINDS, fingerprint
print([fingerprint(make(1)) for make in KINDS.values()])
"""


@pytest.mark.slow
def test_processes_agree():
    """Whatever their seed of hashes is, and wherever their objects lie."""
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    said = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True, check=True, text=True, timeout=60,
    ).stdout  # fmt: skip
    assert f"{[fingerprint(make(1)) for make in KINDS.values()]}\n" == said


def nested(depth):
    """Lists in each other."""
    return [nested(depth - 1)] if depth else []


@pytest.mark.parametrize(
    "value",
    [
        threading.Lock(), (i for i in range(3)), sys, Moody(1), Plain(x=b"a" * (65 << 20)),
        nested(100),
        torch.ones(2, device="meta"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_cannot_be_looked_into_is_named(value):
    """It counts by its class, and never raises."""
    number, unchecked = examine(value)
    assert 1 == len(unchecked)
    assert number == fingerprint(value)


def test_an_attribute_that_cannot_be_looked_into():
    """The others count."""
    assert {"lock"} == examine(Plain(lock=threading.Lock(), x=1)).unchecked


def test_what_looks_different_each_time_is_not_compared():
    """Else an honest source would be refused."""
    assert fingerprint(Moody(1)) == fingerprint(Moody(2))


def test_a_hash_that_an_object_keeps():
    """It is another in each process."""
    assert fingerprint(Plain(x=1, _hash=5)) == fingerprint(Plain(x=1, _hash=6))


def test_keys_count_and_their_order_does_not():
    """It may be one of hashes; batches are made by name."""
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint({"a": 1, 3: 2}) == fingerprint({3: 2, "a": 1}) != fingerprint({"a": 2, 3: 1})
    assert 3 == len({fingerprint(data) for data in ({"a": 1}, {"b": 1}, {"a": 1, "b": 1})})


def test_objects_of_many_parts(monkeypatch):
    """They are given up, wherever the end of patience lies: a set has no first element."""
    monkeypatch.setattr(object_parts, "_MOST_PARTS", 50)
    one, other = (examine(Plain(some={(i, x) for i in range(100)})) for x in (1, 2))
    assert one == other
    assert {"Plain"} == one.unchecked


def test_few_objects_of_a_batch_are_looked_into():
    """To look at an image may be to decode it; not so where all is asked for."""
    images = [Image(0)] * 100
    others = [*images[:-1], Image(1)]
    assert fingerprint(images) == fingerprint(others)
    digests = Digest(), Digest()
    for digest, some in zip(digests, (images, others), strict=True):
        digest.add(some)
    assert digests[0].taken() != digests[1].taken()


def test_bytes_that_mean_nothing_do_not_count():
    """A long double has some, which are as they were in memory before."""
    one, other = np.zeros(2, np.longdouble), np.empty(2, np.longdouble)
    other.view(np.uint8)[:] = 0xFF
    other[:] = 0
    assert fingerprint(one) == fingerprint(other)
    other[1] = np.longdouble(1) / 3
    assert fingerprint(one) != fingerprint(other)
