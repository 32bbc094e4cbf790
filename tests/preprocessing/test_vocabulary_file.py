"""Vocabularies in files: read as they are, once on each machine, and shared by all processes."""

from __future__ import annotations

import copy
import os
import pickle
import shutil
import tempfile
import zipfile

import pytest
import torch

from tests.storages import open_storage
from torch_distinput import preprocessing as pp
from torch_distinput.data.storage import filesystem
from torch_distinput.errors import UsageError
from torch_distinput.preprocessing.layers import string_lookup

WORDS = ["a", "é", "日本", "a\0", " ", "\ufeffb", "x y"]
TEXT = "".join(f"{word}\n" for word in WORDS).encode()
EXPECTED = ["[UNK]", *WORDS]


@pytest.fixture(autouse=True)
def node(tmp_path, monkeypatch):
    """A machine of its own: nothing is kept on it yet."""
    folder = tmp_path / "node"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def path(tmp_path):
    """A vocabulary."""
    written = tmp_path / "words.txt"
    written.write_bytes(TEXT)
    return written


def kept(node):
    """What a machine keeps: folders, whole ones or not."""
    return sorted(path.name for path in node.glob("*/*") if path.is_dir())


@pytest.mark.parametrize("name", ["local", "memory", "s3", "http"])
def test_a_vocabulary_lies_anywhere(name, tmp_path, monkeypatch):
    storage = open_storage(name, tmp_path, monkeypatch)
    try:
        layer = pp.StringLookup(vocabulary=storage.put("words.txt", TEXT))
        assert EXPECTED == layer.get_vocabulary()
        assert [2, 0, 4, 1] == pickle.loads(pickle.dumps(layer))(["é", "no", "a\0", "a"]).tolist()
        with pytest.raises(FileNotFoundError):
            pp.StringLookup(vocabulary=f"{storage.url}/none.txt")
    finally:
        storage.close()


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\nb", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"a", ["a"]),
        (b"a\r\r\n\x0c\n\xc2\x85", ["a\r", "\x0c", "\x85"]),  # no line ends but LF and CRLF
        ("\ufeffa\n日\u2028本\n".encode(), ["\ufeffa", "日\u2028本"]),
        (b"\0\n\0\0\n", ["\0", "\0\0"]),
    ],
)
def test_a_line_is_a_token(path, content, tokens):
    path.write_bytes(content)
    layer = pp.StringLookup(vocabulary=path)
    assert tokens == layer.get_vocabulary(include_special_tokens=False)
    assert list(range(1, 1 + len(tokens))) == layer(tokens).tolist()
    assert list(range(1, 1 + len(tokens))) == layer(pp.pack_strings(tokens)).tolist()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "got an empty file"),
        (b"a\n\nb\n", "got a blank one, line 2. Remove it"),
        (b"\n", "got a blank one, line 1"),
        (b"a\n\r\n", "got a blank one, line 2"),
        (b"a\n\n", "got a blank one, line 2"),
        (b"a\nb\na\n", "got 'a' in lines 1 and 3. Remove one"),
        (b"a\nb\nb\r\n", "got 'b' in lines 2 and 3"),
        (b"a\nb\nc\xff\n", "in UTF-8, got byte 0xff in line 3. Write it with encoding='utf-8'"),
        ("a\nb".encode("utf-16"), "in UTF-8, got byte 0xff in line 1"),
    ],
)
def test_what_is_no_vocabulary_is_refused_with_its_line(path, node, content, message):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"vocabulary .*words.txt.*{message}"):
        pp.StringLookup(vocabulary=path)
    assert [] == kept(node)


def test_special_tokens_and_room_are_those_of_a_list(path):
    for config, message in (
        ({"mask_token": "é"}, "got 'é' among its tokens"),
        ({"oov_token": "é", "invert": True}, "got 'é' among its tokens"),
        ({"max_tokens": 7}, r"at most 6 tokens \(max_tokens=7 with 1 before them\), got 7"),
        ({"output_mode": "tf_idf"}, "needs idf_weights"),
        ({"output_mode": "tf_idf", "idf_weights": [1]}, "Expected a weight for each of 7 tokens"),
        ({"idf_weights": [1]}, "and only then, got some with 'int'"),
    ):
        for vocabulary in (path, WORDS):
            with pytest.raises(ValueError, match=message):
                pp.StringLookup(vocabulary=vocabulary, **config)


def test_one_file_is_named(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_bytes(TEXT)
    with pytest.raises(ValueError, match=r"one vocabulary at .*\*.txt', got 2 files. Name one"):
        pp.StringLookup(vocabulary=f"{tmp_path}/*.txt")
    assert EXPECTED == pp.StringLookup(vocabulary=f"{tmp_path}/a*.txt").get_vocabulary()


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"num_oov_indices": 3, "mask_token": "", "missing": "mask"},
        {"num_oov_indices": 3, "salt": 7, "missing": "oov"},
        {"output_mode": "count", "missing": "oov"},
        {"output_mode": "tf_idf", "idf_weights": [0.5 * n for n in range(len(WORDS))]},
    ],
)
def test_a_file_a_list_and_a_large_vocabulary_are_one(path, config, large, monkeypatch):
    listed = pp.StringLookup(vocabulary=WORDS, **config)
    batch = [[*WORDS, "", "no", b"a", "\udcff"], [*WORDS[::-1], "x", "yy", "\0", "zzz"]]
    if config.get("missing"):
        batch[0][2] = None
    expected = listed(batch)
    if large:
        monkeypatch.setattr(string_lookup, "LARGE_VOCABULARY", 3)
        monkeypatch.setattr(pp.StringLookup, "_find_host", None)  # no dict is made
        assert torch.equal(expected, listed(batch))
    mapped = pp.StringLookup(vocabulary=str(path), **config)
    assert listed.fingerprint() == mapped.fingerprint()
    for layer in (mapped, copy.deepcopy(mapped), pickle.loads(pickle.dumps(mapped))):
        assert torch.equal(expected, layer(batch))
        assert torch.equal(expected, layer(pp.pack_strings(batch)))
    other = pp.StringLookup(**{**config, "idf_weights": None})
    other.load_state_dict(mapped.state_dict())
    assert torch.equal(expected, other(batch))


@pytest.mark.parametrize("name", ["keys", "index.json"])
def test_what_something_else_has_cleaned_up(path, node, name):
    pp.StringLookup(vocabulary=path)
    (damaged,) = node.glob(f"*/*/{name}")
    for damage in (lambda: damaged.write_bytes(b""), damaged.unlink):
        damage()
        with pytest.raises(UsageError, match=rf"words.txt to be as .* remove the folder {node}"):
            pp.StringLookup(vocabulary=path)
    shutil.rmtree(damaged.parent)
    assert EXPECTED == pp.StringLookup(vocabulary=path).get_vocabulary()


class TestAcrossProcesses:
    def test_a_mapped_vocabulary_is_not_pickled(self, path):
        path.write_text("".join(f"token {number}\n" for number in range(20_000)))
        mapped = pp.StringLookup(vocabulary=path)
        assert [10_001] == mapped(["token 10000"]).tolist()
        pickled = pickle.dumps(mapped)
        assert len(pickled) < 5_000
        assert [10_001] == pickle.loads(pickled)(["token 10000"]).tolist()
        assert mapped.text is not None

    def test_a_file_that_changed_is_not_taken_for_the_same(self, path, node):
        layer = pp.StringLookup(vocabulary=path)
        pickled = pickle.dumps(layer)
        path.write_bytes(TEXT + b"more\n")
        assert [0] == layer(["more"]).tolist() == pickle.loads(pickled)(["more"]).tolist()
        (entry,) = (entry for entry in node.glob("*/*") if entry.is_dir())
        shutil.move(entry, node / "as on another machine")
        with pytest.raises(UsageError, match=r"words.txt as it was .* written since. Make the la"):
            pickle.loads(pickled)
        shutil.move(node / "as on another machine", entry)
        assert [8] == pp.StringLookup(vocabulary=path)(["more"]).tolist()
        assert 2 == len(kept(node))

    @pytest.mark.parametrize("marks", [filesystem._MARKS, ()])
    def test_a_file_in_an_archive_that_changed(self, tmp_path, monkeypatch, marks):
        """Of the same size, where the storage has no modification time, or no version at all."""
        monkeypatch.setattr(filesystem, "_MARKS", marks)
        url = f"zip://words.txt::file://{tmp_path}/all.zip"
        for words in (["a", "b"], ["b", "a"]):
            with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
                archive.writestr("words.txt", "\n".join(words))
            layer = pp.StringLookup(vocabulary=url)
            assert ["[UNK]", *words] == layer.get_vocabulary()
            assert [1, 2] == pickle.loads(pickle.dumps(layer))(words).tolist()

    def test_a_file_that_changes_while_it_is_read(self, path, node, monkeypatch):
        def load_late(url, options):
            path.write_bytes(TEXT + b"more\n")
            return load(url, options)

        load = filesystem.load_file
        monkeypatch.setattr(filesystem, "load_file", load_late)
        with pytest.raises(UsageError, match="has been written since"):
            pp.StringLookup(vocabulary=path)
        assert [] == kept(node)

    def test_another_state_takes_the_place_of_the_file(self, path):
        mapped = pp.StringLookup(vocabulary=path)
        mapped.load_state_dict(pp.StringLookup(vocabulary=["z"]).state_dict())
        for layer in (mapped, pickle.loads(pickle.dumps(mapped))):
            assert ["[UNK]", "z"] == layer.get_vocabulary()
            assert [1, 0] == layer(["z", "a"]).tolist()

    def test_the_same_state_stays_mapped(self, path):
        mapped = pp.StringLookup(vocabulary=path)
        mapped.load_state_dict(pp.StringLookup(vocabulary=WORDS).state_dict())
        assert mapped.__getstate__()["_buffers"]["text"] is None
        assert EXPECTED == pickle.loads(pickle.dumps(mapped)).get_vocabulary()


@pytest.mark.parametrize("name", ["text", "ends", "keys", "places"])
@pytest.mark.parametrize("content", [bytes, lambda size: b"\x55" * size], ids=["zeros", "garbage"])
def test_what_a_power_cut_leaves_is_refused(node, path, name, content):
    """A file of the right size and another content would be tokens that nobody finds."""
    pp.StringLookup(vocabulary=path)
    (kept,) = node.glob(f"*/*/{name}")
    size = kept.stat().st_size
    kept.unlink()  # who has it mapped keeps it
    kept.write_bytes(content(size))
    with pytest.raises(UsageError, match="tokens are not in their places"):
        pp.StringLookup(vocabulary=path)


def test_two_jobs_store_one_file(tmp_path, monkeypatch):
    """Processes of two containers may have one id: each writes aside in a place of its own."""
    target, aside = tmp_path / "kept", []
    replace = os.replace

    def noted(source, to):
        aside.append(source)
        replace(source, to)

    monkeypatch.setattr(os, "replace", noted)
    for _ in range(2):
        filesystem.store_file(str(target), b"x", {})
    assert 2 == len(set(aside))


def test_what_was_written_aside_in_vain_is_gone(tmp_path, monkeypatch):
    """A full disk is not filled further."""

    def full(*_):
        raise OSError("full")

    monkeypatch.setattr(os, "replace", full)
    folder = tmp_path / "cache"
    with pytest.raises(OSError, match="full"):
        filesystem.store_file(str(folder / "kept"), b"x", {})
    assert [] == list(folder.iterdir())
