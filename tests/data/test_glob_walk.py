"""Folders of a glob that cannot be listed: fsspec takes them for empty ones."""

from __future__ import annotations

import errno
import logging
import zipfile
from collections import Counter

import fsspec
import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.zip import ZipFileSystem

from torch_distinput.data.storage import filesystem, retries
from torch_distinput.errors import ConfigurationError

FILES = ["a/1.txt", "b/2.txt"]


class Tree(AsyncFileSystem):
    """A network storage of two folders with a file in each."""

    protocol = "tree"

    async def _ls(self, path, detail=True, **kwargs):
        path = self._strip_protocol(path).rstrip("/")
        if path in ("root/a", "root/b"):
            names = {f"root/{name}": "file" for name in FILES if f"root/{name}".startswith(path)}
        elif path == "root":
            names = {"root/a": "directory", "root/b": "directory"}
        else:
            raise FileNotFoundError(path)
        return [{"name": name, "type": kind, "size": 2} for name, kind in names.items()]

    async def _info(self, path, **kwargs):
        path = self._strip_protocol(path).rstrip("/")
        if path == "root":
            return {"name": path, "type": "directory", "size": 0}
        for info in await self._ls(path.rpartition("/")[0]):
            if info["name"] == path:
                return info
        raise FileNotFoundError(path)


@pytest.fixture(params=["local", "network"])
def fails(request, tmp_path, monkeypatch):
    """The glob, and how to make the listings of b fail, with these errors one after another."""
    monkeypatch.setattr(retries, "_FIRST_PAUSE", 0)
    for name in FILES:
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("x\n")
    is_local = request.param == "local"
    system, name = (LocalFileSystem, "ls") if is_local else (Tree, "_ls")
    fsspec.register_implementation("tree", Tree, clobber=True)
    listed = getattr(system, name)

    def fail(errors):
        left, listings = iter(errors), []

        def list_or_fail(self, path, *args, **kwargs):
            listings.append(str(path).rstrip("/")[-1:])
            if str(path).rstrip("/").endswith("/b") and (error := next(left, None)):
                raise error
            return listed(self, path, *args, **kwargs)

        async def list_later(self, path, *args, **kwargs):
            return await list_or_fail(self, path, *args, **kwargs)

        monkeypatch.setattr(system, name, list_or_fail if is_local else list_later)
        return listings

    root = str(tmp_path) if is_local else "tree://root"
    return root, fail


def found(root, pattern="*/*.txt"):
    """The files of a glob below the root."""
    paths = [info.path for info in filesystem.list_files([f"{root}/{pattern}"], {})]
    return [path[-len(FILES[0]) :] for path in paths]


@pytest.mark.parametrize("pattern", ["*/*.txt", "**/*.txt"])
def test_a_failure_that_passes_loses_no_file(fails, pattern):
    root, fail = fails
    fail([OSError(errno.EIO, "busy"), ConnectionResetError("reset")])
    assert FILES == found(root, pattern)


@pytest.mark.parametrize("pattern", ["*/*.txt", "**/*.txt", "a/[1].txt"])
def test_details_that_come_at_the_second_time(monkeypatch, pattern):
    """What a storage knows of the folder where a walk begins, or of a file, is asked for again."""
    monkeypatch.setattr(retries, "_FIRST_PAUSE", 0)
    fsspec.register_implementation("tree", Tree, clobber=True)
    asked, ask = Counter(), Tree._info
    which = 1 if "[" in pattern else 2  # of a walk, fsspec takes the first one for "no folder"

    async def fail_once(self, path, **kwargs):
        asked[path] += 1
        if asked[path] == which:
            raise ConnectionResetError("reset")
        return await ask(self, path, **kwargs)

    monkeypatch.setattr(Tree, "_info", fail_once)
    assert FILES[: 1 if "[" in pattern else 2] == found("tree://root", pattern)


def test_a_name_that_would_be_read_as_a_chain_of_urls(tmp_path):
    """Another file would be opened for it."""
    for name in ("day", "day::2"):
        (tmp_path / name).write_text(name)
    with pytest.raises(ConfigurationError, match="day::2"):
        filesystem.list_files([f"{tmp_path}/day*"], {})
    assert 1 == len(filesystem.list_files([f"{tmp_path}/da[y]"], {}))


def test_what_is_too_long_for_a_name_is_a_glob(tmp_path, monkeypatch):
    """No storage is asked a second time whether there is a file of that name."""
    monkeypatch.setattr(retries, "_FIRST_PAUSE", 1000)
    (tmp_path / "a.txt").write_text("1\n")
    letters = "a" * 300
    assert 1 == len(filesystem.list_files([f"{tmp_path}/[{letters}].txt"], {}))


def test_a_failure_that_stays_is_an_error(fails):
    root, fail = fails
    fail([OSError(errno.EIO, "broken disk")] * 20)
    with pytest.raises(OSError, match="broken disk.*after 5 attempts"):
        found(root)


def test_a_folder_that_may_not_be_listed_is_left_out_and_told(fails, caplog):
    """As of a shell; lost+found is one."""
    root, fail = fails
    fail([PermissionError(errno.EACCES, "not yours")] * 20)
    if root.startswith("tree"):  # there it may be a login that has expired meanwhile
        with pytest.raises(PermissionError, match="not yours"):
            found(root)
        return
    with caplog.at_level(logging.WARNING):
        assert FILES[:1] == found(root)
    assert "are left out" in caplog.text
    assert "not yours" in caplog.text


def test_only_the_listing_that_failed_is_asked_again(fails):
    """Where there are many, some listing of each walk may fail."""
    root, fail = fails
    listings = fail([OSError(errno.EIO, "busy")] * 4)
    assert FILES == found(root)
    assert listings.count("a") == listings.count("b") - 4


def test_an_archive_is_opened_once(tmp_path, monkeypatch):
    """Its index was read when it was opened, so no listing of it fails."""
    opened = []
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for name in FILES:
            archive.writestr(name, "x\n")
    begin = ZipFileSystem.__init__
    monkeypatch.setattr(
        ZipFileSystem, "__init__", lambda *args, **named: opened.append(1) or begin(*args, **named)
    )
    infos = filesystem.list_files([f"zip://*/*.txt::file://{tmp_path}/all.zip"], {})
    assert len(infos) == len(FILES)
    assert len(opened) == 1


def test_a_folder_that_has_gone_is_empty(fails, caplog):
    root, fail = fails
    fail([FileNotFoundError("gone")] * 20)
    assert FILES[:1] == found(root)
    assert not caplog.records


def test_the_file_systems_of_others_are_not_watched(fails):
    root, _ = fails
    found(root)
    system, _ = fsspec.core.url_to_fs(root)
    assert ("_ls" if isinstance(system, Tree) else "ls") not in vars(system)
