"""A vocabulary's file and the processes of a machine: one fetches it, and all share its memory."""

from __future__ import annotations

import multiprocessing
import pickle
import tempfile
import threading
from pathlib import Path

import pytest

from tests.storages import WebServer
from torch_distinput import preprocessing as pp

WORDS = ["a", "é", "日本"]
TOKENS = 3_000_000
MIB = 1 << 20


class HeldFiles(dict):
    """Files whose first reader waits until :meth:`release`."""

    def __init__(self, server):
        super().__init__(server.files)
        self.requests = server.requests
        self.changed = threading.Condition()
        self.released = False

    def get(self, path, default=None):
        """Serve a file."""
        with self.changed:
            self.changed.notify_all()
            if self.requests["GET", path] == 1:
                self.changed.wait_for(lambda: self.released, 60)
        return super().get(path, default)

    def wait_for(self, command, path, number):
        """Wait until a path was asked for so many times."""
        with self.changed:
            asked = lambda: self.requests[command, path] >= number
            assert self.changed.wait_for(asked, 60)

    def release(self):
        """Let the first reader have its file."""
        with self.changed:
            self.released = True
            self.changed.notify_all()


@pytest.fixture(autouse=True)
def node(tmp_path, monkeypatch):
    """A machine of its own, for this process and those it starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def server():
    serving = WebServer()
    yield serving
    serving.close()


def look_up(url, folder, queue):
    """In a process of its own: open a vocabulary and use it."""
    tempfile.tempdir = folder  # of the machine; the fork server does not know
    queue.put(pp.StringLookup(vocabulary=url)(WORDS[::-1]).tolist())


@pytest.mark.slow
def test_one_process_of_a_machine_fetches_it(server, tmp_path):
    """The others wait; when it is killed meanwhile the next one begins anew."""
    url = server.put("words.txt", "\n".join(WORDS).encode())
    server.versions["/words.txt"] = "1"  # without one each would look at the content
    server.files = held = HeldFiles(server)
    context = multiprocessing.get_context("forkserver")
    queue = context.Queue()
    arguments = (url, str(tmp_path), queue)
    killed, *others = (context.Process(target=look_up, args=arguments) for _ in range(3))
    killed.start()
    held.wait_for("GET", "/words.txt", 1)
    for process in others:
        process.start()
    held.wait_for("HEAD", "/words.txt", 3)
    killed.kill()
    killed.join()
    (aside,) = tmp_path.glob("*/*/")
    assert "." in aside.name  # nobody takes it for a whole one
    held.release()
    assert [[3, 2, 1]] * 2 == [queue.get(timeout=60) for _ in others]
    for process in others:
        process.join()
    assert 1 + 1 == server.requests["GET", "/words.txt"]
    (folder,) = tmp_path.glob("*/*/")
    assert {"index.json", "text", "ends", "keys", "places"} == {p.name for p in folder.iterdir()}


def private_bytes(pickled, queue):
    """In a process of its own: use a layer, and tell the memory that is not shared."""
    layer = pickle.loads(pickled)
    found = layer([f"token {number}" for number in range(0, TOKENS, 400)])
    rollup = Path("/proc/self/smaps_rollup").read_text().splitlines()
    kib = sum(int(line.split()[1]) for line in rollup if line.startswith("Private_"))
    queue.put((kib * 1024, int((found > 0).sum())))


@pytest.mark.long
def test_a_large_vocabulary_costs_a_process_little_memory(tmp_path):
    """Pages that two processes map are not private: this one maps them all."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    private = {}
    for size in (10, TOKENS):
        path = tmp_path / f"{size}.txt"
        path.write_text("".join(f"token {number}\n" for number in range(size)))
        layer = pp.StringLookup(vocabulary=path)
        assert all(int(layer.get_buffer(name).sum()) for name in ("text", "ends", "keys", "places"))
        pickled = pickle.dumps(layer)
        runs = [context.Process(target=private_bytes, args=(pickled, queue)) for _ in range(2)]
        for process in runs:
            process.start()
        answers = [queue.get(timeout=120) for _ in runs]
        for process in runs:
            process.join()
        private[size] = max(used for used, _ in answers)
        assert {1 if size == 10 else TOKENS // 400} == {found for _, found in answers}
    extra = private[TOKENS] - private[10]
    assert extra <= 40 * MIB, {size: used / MIB for size, used in private.items()}
