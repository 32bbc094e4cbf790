"""What is made from a file once on each machine, and mapped to memory by all of its processes.

The folder lies where temporary files do (``TMPDIR``), so on the machine's own disk. It is made by
the first process that needs it; the others wait for it. Nothing in it is ever changed.

    process                writes                           reads         guarded by
    the first that asks    a folder aside, then its name                  the lock file
    all others                                              the folder    its name, given last
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch_distinput.data.storage import file_locks
from torch_distinput.data.storage.file_listing import FileInfo


def key_of(info: FileInfo, kind: str) -> str:
    """Name what is made from a file: it changes when the file does."""
    text = "\n".join((kind, os.path.abspath(info.path) if "://" not in info.path else info.path))
    text = f"{text}\n{info.size}\n{info.version}"
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


def is_kept(key: str) -> bool:
    """Whether this machine has the folder of that key."""
    return (_root() / key).is_dir()


def kept_folder(key: str, make: Callable[[Path], None]) -> Path:
    """Return the folder of that key, made by ``make(folder)`` if there is none yet.

    ``make`` runs in one process at a time, into a folder aside; a process that dies leaves nothing
    that another would take for complete.
    """
    folder = _root() / key
    if folder.is_dir():
        return folder
    with _lock(folder.with_suffix(".lock")):
        if not folder.is_dir():
            if file_locks.HAS_LOCKS:
                for left in folder.parent.glob(f"{key}.*/"):  # by a process that died
                    shutil.rmtree(left, ignore_errors=True)
            aside = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=folder.parent))
            try:
                make(aside)
                _flush(aside)
                aside.rename(folder)
            except OSError as error:
                if folder.is_dir():  # without locks another process may have been faster
                    return folder
                if not _is_full(error):
                    raise
                raise _make_no_room_error(folder.parent, error) from error
            finally:
                shutil.rmtree(aside, ignore_errors=True)  # it is gone if all went well
    return folder


def _flush(folder: Path) -> None:
    """Write to the disk now: a machine that fails might keep the folder without the contents."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _is_full(error: OSError) -> bool:
    """Whether a disk is full; NumPy's own error has no number."""
    by_numpy = type(error) is OSError and error.errno is None
    return by_numpy or error.errno in (errno.ENOSPC, errno.EDQUOT)


def _make_no_room_error(root: Path, error: OSError) -> OSError:
    found = (
        f"Expected room in {root} for what this machine keeps of a file, got {error}; "
        f"{shutil.disk_usage(root).free} bytes are free. Make room, or set TMPDIR to a folder on a "
        "larger disk."
    )
    return OSError(errno.ENOSPC, found)


def _root() -> Path:
    """This user's folder: no other may put files into it."""
    user = os.getuid() if hasattr(os, "getuid") else 0  # on Windows the folder is the user's own
    root = Path(tempfile.gettempdir()) / f"torch_distinput-{user}"
    root.mkdir(mode=0o700, exist_ok=True)
    found = root.lstat()
    if found.st_uid != user or not stat.S_ISDIR(found.st_mode):
        msg = (
            f"Expected the folder {root} to be this user's own, got one of user {found.st_uid}. "
            "Remove it, or set TMPDIR to a folder on this machine's disk."
        )
        raise PermissionError(msg)
    return root


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold a lock that the system drops when the process dies; nothing where it has none."""
    if not file_locks.HAS_LOCKS:
        yield
        return
    with path.open("w") as file:
        file_locks.lock(file)
        try:
            yield
        finally:
            file_locks.unlock(file)
