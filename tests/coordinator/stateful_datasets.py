"""Datasets with a state, each with ways of its own."""

from __future__ import annotations


class Numbers:
    """0, 1, 2, ... with a state; each iter() goes on, at most once, from a loaded one."""

    def __init__(self, first=0, size=1_000_000) -> None:
        self.first, self.size, self.epoch, self.place, self.loaded = first, size, -1, 0, False

    def __iter__(self):
        if not self.loaded:
            self.epoch, self.place = self.epoch + 1, 0
        self.loaded = False
        epoch = self.epoch
        while self.epoch == epoch and self.place < self.size:
            self.place += 1
            yield 1000 * epoch + self.first + self.place - 1

    def state_dict(self):
        return {"epoch": self.epoch, "place": self.place}

    def load_state_dict(self, state) -> None:
        self.epoch, self.place, self.loaded = state["epoch"], state["place"], True


class Ahead(Numbers):
    """After its last number its state is of the next epoch."""

    def __init__(self) -> None:
        super().__init__(size=3)

    def state_dict(self):
        is_over = self.place == self.size
        return {"epoch": self.epoch + is_over, "place": 0 if is_over else self.place}


class OnePass:
    """An iterator with a state: the function that makes it is called for each iter()."""

    def __init__(self) -> None:
        self.place = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.place += 1
        if self.place > 3:
            raise StopIteration
        return self.place - 1

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state) -> None:
        self.place = state["place"]
