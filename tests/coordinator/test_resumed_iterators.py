"""Where the iterator of a worker goes on that died. Over pretended processes."""

from __future__ import annotations

import random
from collections import Counter

import datasets
import pytest
import torch
from torchdata import nodes
from torchdata.stateful_dataloader import StatefulDataLoader

import torch_distinput as tdi
from tests.coordinator.simulated_engine import Gate, die, worker_name
from tests.coordinator.stateful_datasets import Ahead, Numbers, OnePass
from torch_distinput.coordinator import ClusterCoordinator, ParameterServerStrategy


def make_numbers(context):
    return Numbers(100_000 * context.input_pipeline_id)


def make_short():
    return Numbers(size=3)


def make_rows():
    strategy = tdi.get_strategy()
    return strategy.distribute_dataset(torch.arange(24), global_batch_size=4, shuffle=True)


def make_loader():
    return StatefulDataLoader(torch.arange(6), batch_size=2)


class Stream(torch.utils.data.IterableDataset):
    """Does not tell where it is."""

    def __iter__(self):
        return iter(range(40))


def make_stream_loader():
    return StatefulDataLoader(Stream(), batch_size=2)


class NumberStream(Stream):
    """It tells where it is, and begins again after its end."""

    place = 0

    def __iter__(self):
        while self.place < 40:
            self.place += 1
            yield self.place - 1
        self.place = 0

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


def make_process_loader():
    return StatefulDataLoader(NumberStream(), batch_size=2, num_workers=1)


def make_hugging_face_stream():
    """A state that was loaded is where each later pass begins, too."""
    rows = datasets.Dataset.from_dict({"number": list(range(40))})
    return rows.to_iterable_dataset(num_shards=4)


def make_node_loader():
    """After its last batch its state is of the next epoch."""
    return nodes.Loader(nodes.IterableWrapper(range(6)))


def take(iterator, number=1):
    return [next(iterator) for _ in range(number)]


def take_rows(iterator):
    return next(iterator).tolist()


def take_and_die(iterator, gate):
    """Take two, and die the first time."""
    taken = take(iterator, 2)
    gate.arrive()
    if len(gate.arrivals) == 1:
        die()
    return taken


def leave_and_die(iterator, gate):
    """Take nothing, and die the first time."""
    gate.arrive()
    if len(gate.arrivals) == 1:
        die()


def take_all(iterator):
    return [row for batch in iterator for row in sorted(batch.tolist())]


def list_all(iterator):
    return [row for element in iterator for row in torch.as_tensor(element).flatten().tolist()]


def fail_after(iterator):
    raise ValueError(str(take(iterator, 2)))


def rows_of(iterator, number):
    return [row for _ in range(number) for row in take_rows(iterator)]


class TestStart:
    def test_it_begins_again_at_the_start(self, alone) -> None:
        iterator = iter(alone.create_per_worker_dataset(make_numbers))
        first = alone.schedule(take, args=(iterator, 3))
        lost = alone.schedule(take_and_die, args=(iterator, Gate("start")))
        assert [[0, 1, 2], [0, 1]] == alone.fetch([first, lost])

    def test_what_the_lost_closure_took_is_not_known(self, alone) -> None:
        dataset = alone.create_per_worker_dataset(make_numbers)
        iterator = iter(dataset)
        alone.schedule(take, args=(iterator, 3))
        alone.schedule(take_and_die, args=(iterator, Gate("lost")))
        alone.join()
        visits = dataset.visits()
        assert {(0, 0): 2, (0, 1): 2, (0, 2): 1} == visits.counts
        assert (2, 1) == (visits.num_closures, visits.num_lost)


class TestState:
    def test_it_goes_on_where_the_last_returned_closure_stood(self, alone) -> None:
        dataset = alone.create_per_worker_dataset(make_numbers, resume="state")
        iterator = iter(dataset)
        first = alone.schedule(take, args=(iterator, 3))
        lost = alone.schedule(take_and_die, args=(iterator, Gate("state")))
        last = alone.schedule(take, args=(iterator,))
        assert [[0, 1, 2], [3, 4], [5]] == alone.fetch([first, lost, last])
        alone.join()
        assert {(0, i): 1 for i in range(6)} == dataset.visits().counts
        assert 1 == dataset.visits().num_lost

    def test_a_closure_that_raised_has_returned(self, alone) -> None:
        iterator = iter(alone.create_per_worker_dataset(make_numbers, resume="state"))
        alone.schedule(fail_after, args=(iterator,))
        with pytest.raises(ValueError, match=r"\[0, 1\]"):
            alone.join()
        value = alone.schedule(take_and_die, args=(iterator, Gate("raised")))
        assert [2, 3] == value.fetch()

    def test_it_goes_on_from_the_start_if_nothing_has_returned(self, alone) -> None:
        iterator = iter(alone.create_per_worker_dataset(make_numbers, resume="state"))
        assert [0, 1] == alone.schedule(take_and_die, args=(iterator, Gate("first"))).fetch()

    def test_a_new_epoch_is_not_begun_twice(self, alone) -> None:
        """The worker dies in the first closure of the second epoch."""
        dataset = alone.create_per_worker_dataset(make_numbers, resume="state")
        alone.schedule(take, args=(iter(dataset), 3))
        second = iter(dataset)
        lost = alone.schedule(take_and_die, args=(second, Gate("epoch")))
        last = alone.schedule(take, args=(second,))
        assert [[1000, 1001], [1002]] == alone.fetch([lost, last])

    def test_so_after_the_end_of_the_first(self, alone) -> None:
        dataset = alone.create_per_worker_dataset(make_short, resume="state")
        alone.schedule(take, args=(iter(dataset), 3))
        value = alone.schedule(take_and_die, args=(iter(dataset), Gate("end")))
        assert [1000, 1001] == value.fetch()

    @pytest.mark.parametrize("take_first", [take_all, take_rows])
    def test_an_iterator_that_came_back_unused_does_not_shift_the_next(
        self, alone, take_first
    ) -> None:
        """As one for validation does, which all closures get and few use."""
        dataset = alone.create_per_worker_dataset(make_rows, resume="state")
        first = iter(dataset)
        alone.schedule(take_first, args=(first,))
        alone.schedule(leave_and_die, args=(first, Gate(take_first.__name__)))
        alone.join()
        for _ in range(2):
            rows = alone.schedule(take_all, args=(iter(dataset),)).fetch()
            assert sorted(rows) == list(range(24))

    def test_an_end_that_came_by_itself_is_kept(self, alone) -> None:
        """In a closure that took nothing; it is none that visits() counts."""
        dataset = alone.create_per_worker_dataset(Ahead, resume="state")
        iterator = iter(dataset)
        alone.schedule(take, args=(iterator, 3))
        assert [] == alone.schedule(list_all, args=(iterator,)).fetch()
        alone.schedule(leave_and_die, args=(iterator, Gate("end alone")))
        assert [] == alone.schedule(list_all, args=(iterator,)).fetch()
        assert 1 == dataset.visits().num_closures
        assert [1000, 1001, 1002] == alone.schedule(list_all, args=(iter(dataset),)).fetch()

    @pytest.mark.parametrize("has_ended", [True, False])
    def test_one_that_is_the_dataset_itself_begins_again(self, alone, has_ended) -> None:
        dataset = alone.create_per_worker_dataset(OnePass, resume="state")
        first = list_all if has_ended else take
        alone.schedule(first, args=(iter(dataset),))
        second = iter(dataset)
        alone.schedule(leave_and_die, args=(second, Gate(f"one pass {has_ended}")))
        assert [0, 1, 2] == alone.schedule(list_all, args=(second,)).fetch()

    @pytest.mark.parametrize("make", [make_loader, make_short, make_rows])
    def test_one_that_had_ended_stays_so(self, alone, make) -> None:
        """Though its dataset is at the next epoch, perhaps: a StatefulDataLoader's state is."""
        expected = make() if make is not make_rows else None
        dataset = alone.create_per_worker_dataset(make, resume="state")
        for epoch in range(2):
            iterator = iter(dataset)
            found = alone.schedule(list_all, args=(iterator,)).fetch()
            alone.schedule(leave_and_die, args=(iterator, Gate(f"{make.__name__} {epoch}")))
            assert [] == alone.schedule(list_all, args=(iterator,)).fetch()
            if expected is not None:
                assert list_all(iter(expected)) == found
            else:
                assert list(range(24)) == sorted(found)
        alone.join()
        assert {2} == set(dataset.visits().counts.values())

    @pytest.mark.parametrize("was_used", [True, False])
    def test_an_iterator_that_was_replaced_is_refused(self, alone, was_used) -> None:
        dataset = alone.create_per_worker_dataset(make_numbers, resume="state")
        first, second = iter(dataset), iter(dataset)
        if was_used:
            alone.schedule(take, args=(first,)).fetch()
        alone.schedule(take, args=(second,)).fetch()
        alone.schedule(take, args=(first,))
        with pytest.raises(tdi.UsageError, match=r"newest iterator of dataset 0 \(make_numbers\)"):
            alone.join()

    @pytest.mark.parametrize("dataset", [[1, 2], lambda: [1, 2]])
    def test_without_a_state_it_is_refused(self, alone, dataset) -> None:
        made = alone.create_per_worker_dataset([1, 2], resume="state")
        with pytest.raises(
            tdi.ConfigurationError,
            match=r"on worker 0 it raised.*resume='state' needs a dataset with state_dict.*list",
        ):
            while True:
                alone.join()
        del made

    def test_a_shuffled_dataset_of_ours_is_delivered_once(self, alone) -> None:
        dataset = alone.create_per_worker_dataset(make_rows, resume="state")
        for epoch in range(2):
            iterator = iter(dataset)
            gate = Gate(f"rows {epoch}")
            values = [alone.schedule(take_rows, args=(iterator,)) for _ in range(2)]
            values.append(alone.schedule(take_rows_and_die, args=(iterator, gate)))
            values += [alone.schedule(take_rows, args=(iterator,)) for _ in range(3)]
            rows = [row for batch in alone.fetch(values) for row in batch]
            assert list(range(24)) == sorted(rows)
            assert list(range(24)) != rows
        alone.join()
        assert {(0, row): 2 for row in range(24)} == dataset.visits().counts

    def test_so_is_a_stateful_loader(self, alone) -> None:
        dataset = alone.create_per_worker_dataset(make_loader, resume="state")
        for epoch in range(2):
            iterator = iter(dataset)
            values = []
            if epoch == 0:
                values.append(alone.schedule(take_rows, args=(iterator,)))
            gate = Gate(f"loader {epoch}")
            values.append(alone.schedule(take_rows_and_die, args=(iterator, gate)))
            values += [alone.schedule(take_rows, args=(iterator,)) for _ in range(2 - len(values))]
            values.append(alone.schedule(take_rows, args=(iterator,)))
            assert [[0, 1], [2, 3], [4, 5]] == alone.fetch(values)

    @pytest.mark.parametrize(
        "make",
        [make_stream_loader, make_process_loader, make_hugging_face_stream, make_node_loader],
    )
    def test_one_that_is_not_exact_is_refused(self, alone, make) -> None:
        """Torchdata counts twice what it passes over, which only a second restart shows."""
        iterator = iter(alone.create_per_worker_dataset(make, resume="state"))
        alone.schedule(take, args=(iterator,))
        with pytest.raises(tdi.ConfigurationError, match=r"would lose or repeat.*on the worker"):
            alone.join()


def take_rows_and_die(iterator, gate):
    rows = take_rows(iterator)
    gate.arrive()
    if len(gate.arrivals) == 1:
        die()
    return rows


@pytest.mark.parametrize("num_workers", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_random_deaths_neither_lose_nor_repeat(simulated, num_workers, seed) -> None:
    """What the closures returned, over all workers, is what each worker's data begins with."""
    rng = random.Random(seed)
    deaths: Counter = Counter()

    def kill_some(remote, method):
        this = remote.request.number if method == "run" else remote.name
        if rng.random() < 0.15 and deaths[this] < 2:
            deaths[this] += 1
            remote.kill()

    simulated.before = simulated.after = kill_some
    with ParameterServerStrategy(num_workers, 0, simulated, devices=["cpu"]) as strategy:
        coordinator = ClusterCoordinator(strategy)
        dataset = coordinator.create_per_worker_dataset(make_numbers, resume="state")
        iterator = iter(dataset)
        values = [coordinator.schedule(take_by_name, args=(iterator, i % 3)) for i in range(60)]
        coordinator.join()
        found = Counter(number for _, numbers in coordinator.fetch(values) for number in numbers)
    assert 60 == sum(found.values())
    for worker in range(num_workers):
        first = 100_000 * worker
        own = sorted(number for number in found if first <= number < first + 100_000)
        assert list(range(first, first + len(own))) == own
    assert {1} == set(found.values())
    assert dict.fromkeys(dataset.visits().counts, 1) == dataset.visits().counts
    assert sum(deaths.values()) > 3


def take_by_name(iterator, number):
    return worker_name(), take(iterator, number)
