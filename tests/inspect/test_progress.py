"""A bar changes nothing of the loop beside it, and tells where the epoch stands."""

from __future__ import annotations

import io
import re
import sys
import threading
import weakref

import numpy as np
import pytest
import torch
from tqdm import tqdm

import torch_distinput as tdi
from torch_distinput.inspect.progress import plain_bar
from torch_distinput.inspect.progress import progress as module
from torch_distinput.testing import simulate


def make_dataset(size=12, global_batch_size=3, strategy=None):
    strategy = strategy or tdi.OneDeviceStrategy("cpu")
    return strategy.distribute_dataset(torch.arange(size), global_batch_size=global_batch_size)


def as_lists(steps):
    return [step.tolist() for step in steps]


def drawn(text):
    """The bars as they were drawn, oldest first."""
    return [line for line in re.split(r"[\r\n]+", text) if line.strip()]


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Interrupted(Terminal):
    """A terminal at which somebody may press Ctrl-C while a bar is drawn."""

    is_pressed = False

    def write(self, text):
        if self.is_pressed:
            raise KeyboardInterrupt
        return super().write(text)


def open_terminal(monkeypatch, terminal=None):
    """Called by a test, as pytest puts its own file there after the fixtures."""
    terminal = terminal or Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    return terminal


@pytest.fixture
def no_tqdm(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)


def test_the_steps_are_the_datasets_own(capsys):
    dataset = make_dataset()
    assert as_lists(dataset) == as_lists(tdi.progress(dataset))
    assert [[0, 1, 2], [3, 4, 5]] == as_lists(s.batch for s in tdi.progress(dataset).steps())[:2]


def test_a_bar_ends_with_all_steps_and_examples(capsys):
    assert 4 == len(list(tdi.progress(make_dataset())))
    last = drawn(capsys.readouterr().err)[-1]
    assert "Epoch 0: 100%" in last
    assert "4/4" in last
    assert "12 examples, waiting" in last


def test_a_resumed_epoch_goes_on_where_it_was_also_with_other_batches(capsys):
    """Three steps of two examples, then two of three: 5 steps, and the bar begins at 3."""
    before = make_dataset(global_batch_size=2)
    state = [step.state_dict() for step in before.steps()][2]
    dataset = make_dataset()
    dataset.load_state_dict(state)
    assert [[6, 7, 8], [9, 10, 11]] == as_lists(tdi.progress(dataset))
    bars = drawn(capsys.readouterr().err)
    assert "3/5" in bars[0]
    assert "6 examples" in bars[0]
    assert "5/5" in bars[-1]
    assert "12 examples" in bars[-1]


def test_only_the_first_worker_draws_and_all_get_the_same_type(capsys):
    def play(strategy):
        shown = iter(tdi.progress(make_dataset(strategy=strategy), desc=str(strategy)))
        return type(shown).__name__, sum(len(batch) for batch in shown)

    played = simulate(play, num_workers=2)
    printed = capsys.readouterr().err
    assert {"ProgressIterator"} == {name for name, _ in played}
    assert 12 == sum(count for _, count in played)
    assert "worker 0 of 2" in printed
    assert "12 examples" in printed  # of both
    assert "worker 1 of 2" not in printed


def test_a_loop_that_is_left_ends_its_line_and_lets_the_iterator_go(capsys):
    dataset = make_dataset()
    for _ in tdi.progress(dataset):
        kept = weakref.ref(dataset._running())
        break
    assert kept() is None
    bars = capsys.readouterr().err
    assert "1/4" in drawn(bars)[-1]
    assert bars.endswith("\n")
    assert [[0, 1, 2]] == as_lists(dataset)[:1]


def test_a_loop_that_is_left_open_ends_its_line_before_the_interpreter_is_taken_down():
    """A script that stops in the middle holds its iterator until then; tqdm would raise."""
    iterator = iter(tdi.progress(make_dataset()))
    assert iterator.close_bar.alive
    assert iterator.close_bar.atexit
    iterator.close()


def test_a_new_iterator_ends_the_line_of_the_one_before(capsys):
    shown = tdi.progress(make_dataset())
    earlier = iter(shown)
    next(earlier)
    assert not capsys.readouterr().err.endswith("\n")
    later = iter(shown)
    assert "\n" in capsys.readouterr().err
    later.close()
    with pytest.raises(tdi.UsageError, match=r"closed by a newer iter\(\)"):
        next(earlier)


def test_an_iterator_has_what_the_distributed_one_has():
    dataset = make_dataset()
    with iter(tdi.progress(dataset)) as shown:
        shown.get_next()
        assert shown.get_next_as_optional().has_value()
        assert 1 == shown.last_step.index
        assert 2 == shown.stats().steps
        assert dataset.state_dict() == shown.state_dict()
        assert (None,) == shown.element_spec.shape
    with pytest.raises(tdi.UsageError, match=r"closed by close\(\)"):
        next(shown)


def test_a_step_as_optional_moves_the_bar(capsys):
    shown = iter(tdi.progress(make_dataset()))
    while shown.get_next_as_optional().has_value():
        pass
    assert "4/4" in drawn(capsys.readouterr().err)[-1]


def test_groups_of_steps_move_the_bar_step_by_step(capsys):
    groups = tdi.accumulate(tdi.progress(make_dataset()).steps(), 3)
    assert [9, 3] == [group.num_examples for group in groups]
    assert "4/4" in drawn(capsys.readouterr().err)[-1]


def test_steps_that_nobody_knows_have_no_total_unless_the_user_does(capsys):
    def numbers():
        yield from range(6)

    strategy = tdi.OneDeviceStrategy("cpu")
    dataset = strategy.distribute_dataset(numbers, global_batch_size=2)
    list(tdi.progress(dataset))
    assert "Epoch 0: 3step" in drawn(capsys.readouterr().err)[-1]
    list(tdi.progress(dataset, total=3, desc="again"))
    assert "again: 100%" in drawn(capsys.readouterr().err)[-1]
    list(tdi.progress(dataset, total=2))  # too low: it grows
    assert "3/3" in drawn(capsys.readouterr().err)[-1]


def test_files_are_counted_before_the_bar_is_drawn(capsys, tmp_path):
    np.save(tmp_path / "a.npy", np.arange(10))
    files = tdi.FileDataset([str(tmp_path / "a.npy")], reader="npy")
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(files, global_batch_size=4)
    list(tdi.progress(dataset))
    assert "0/3" in drawn(capsys.readouterr().err)[0]


def test_an_error_ends_the_line_and_is_raised(capsys):
    def broken():
        yield 1
        raise OSError("gone")

    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(broken, global_batch_size=1)
    with pytest.raises(tdi.SourceError, match="gone"):
        list(tdi.progress(dataset))
    assert capsys.readouterr().err.endswith("\n")


@pytest.mark.parametrize("with_tqdm", [True, False])
def test_ctrl_c_in_a_bar_loses_no_step(with_tqdm, monkeypatch):
    if not with_tqdm:
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    monkeypatch.setattr(plain_bar, "_SECONDS_BETWEEN", 0.0)
    terminal = open_terminal(monkeypatch, Interrupted())
    dataset = make_dataset()
    steps = iter(tdi.progress(dataset))
    steps._bar.mininterval = 0  # of tqdm: draw each step
    first = next(steps).tolist()
    terminal.is_pressed = True
    with pytest.raises(KeyboardInterrupt):
        next(steps)
    terminal.is_pressed = False
    resumed = make_dataset()
    resumed.load_state_dict(dataset.state_dict())
    rest = as_lists(steps)
    assert rest == as_lists(resumed)
    assert as_lists(make_dataset()) == [first, *rest]


def test_logs_get_a_line_in_half_a_minute_and_terminals_what_tqdm_gives(monkeypatch):
    monkeypatch.delenv("TQDM_MININTERVAL", raising=False)
    dataset = make_dataset()
    assert 30 == iter(tdi.progress(dataset))._bar.mininterval
    open_terminal(monkeypatch)
    assert 0.1 == iter(tdi.progress(dataset))._bar.mininterval


class BrokenPipe(Terminal):
    """Its reader goes after the first bar, or was never there."""

    def __init__(self, num_lines):
        super().__init__()
        self._left = num_lines

    def write(self, text):
        self._left -= 1
        if self._left < 0:
            raise BrokenPipeError(32, "nobody reads")
        return len(text)


@pytest.mark.parametrize("with_tqdm", [True, False])
@pytest.mark.parametrize("num_lines", [0, 1, 3])
def test_a_rank_whose_bar_nobody_reads_trains_on(num_lines, with_tqdm, monkeypatch):
    """The others would wait for it."""
    if not with_tqdm:
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    monkeypatch.setattr(plain_bar, "_SECONDS_BETWEEN", 0.0)
    monkeypatch.setenv("TQDM_MININTERVAL", "0")
    monkeypatch.setattr(sys, "stderr", BrokenPipe(num_lines))
    assert 4 == len(list(tdi.progress(make_dataset())))
    other = threading.Thread(target=draw_a_bar, daemon=True)
    other.start()
    other.join(60)
    assert not other.is_alive()


def draw_a_bar():
    """Of another library's, in its own thread."""
    list(tqdm(range(3), file=io.StringIO()))


def test_a_bar_of_tqdm_has_no_thread(monkeypatch):
    open_terminal(monkeypatch)
    before = set(threading.enumerate())
    shown = iter(tdi.progress(make_dataset()))
    assert set() == set(threading.enumerate()) - before
    shown.close()


class TestWithoutTqdm:
    def test_a_terminal_shows_a_line(self, no_tqdm, monkeypatch):
        terminal = open_terminal(monkeypatch)
        monkeypatch.setattr(plain_bar, "_SECONDS_BETWEEN", 0.0)
        list(tdi.progress(make_dataset(), desc="train"))
        lines = drawn(terminal.getvalue())
        assert lines[0].startswith("train: 0/4 steps, 0 examples, waiting")
        assert any(line.startswith("train: 2/4 steps, 6 examples") for line in lines)
        assert lines[-1].startswith("train: 4/4 steps, 12 examples")
        assert terminal.getvalue().endswith("\n")

    def test_it_is_drawn_no_more_often_than_due(self, no_tqdm, monkeypatch):
        terminal = open_terminal(monkeypatch)
        monkeypatch.setattr(plain_bar, "_SECONDS_BETWEEN", 1e9)
        list(tdi.progress(make_dataset()))
        assert 2 == len(drawn(terminal.getvalue()))  # the first and the last

    def test_elsewhere_nothing_is_shown(self, no_tqdm, capsys):
        assert 4 == len(list(tdi.progress(make_dataset())))
        assert "" == capsys.readouterr().err


@pytest.mark.parametrize("what", [[1, 2], "steps", "iterator"])
def test_what_is_no_dataset_is_refused(what):
    dataset = make_dataset()
    given = {"steps": dataset.steps(), "iterator": iter(dataset)}.get(str(what), what)
    message = r"progress\(\) shows a bar for a distributed dataset, got .*\.steps\(\)"
    with pytest.raises(TypeError, match=message):
        tdi.progress(given)


@pytest.mark.parametrize("arguments", [{"desc": 1}, {"total": "10"}])
def test_settings_of_another_type_are_refused(arguments):
    with pytest.raises(TypeError, match="must be"):
        tdi.progress(make_dataset(), **arguments)


def test_what_has_a_bar_is_no_source():
    """It would be cut again."""
    strategy = tdi.OneDeviceStrategy("cpu")
    dataset = make_dataset(strategy=strategy)
    for shown in (tdi.progress(dataset), iter(tdi.progress(dataset))):
        with pytest.raises((TypeError, ValueError)):
            strategy.distribute_dataset(shown, global_batch_size=2)


def test_a_progress_has_the_length_of_its_dataset():
    assert 4 == len(tdi.progress(make_dataset()))
    assert bool(tdi.progress(make_dataset(size=0)))
