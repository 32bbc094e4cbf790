"""Asking a storage again after a failure that may pass.

Who writes and reads what:

    thread                   writes    reads    guarded by
    readers (one or more)    count              _lock
    who reports it           count     count    _lock
"""

from __future__ import annotations

import asyncio
import errno
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import NoReturn, TypeVar, final
from zipfile import BadZipFile

from torch_distinput.threads import Lock, new_lock

T = TypeVar("T")

_ATTEMPTS = 5
_FIRST_PAUSE = 0.1
"""Seconds before the second attempt; the pause doubles from attempt to attempt."""
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
_TIMEOUTS = (TimeoutError, asyncio.TimeoutError)  # one and the same from Python 3.11 on
_LASTING = {errno.ENAMETOOLONG, errno.EINVAL, errno.ENOSPC, errno.EDQUOT, errno.EROFS}
"""What is said of a path that can be no file's, and by a disk that takes no copy."""
_REFUSALS = {400, 401, 403, 404, 405, 410, 416}
_NO_RIGHT = {401, 403}
_NO_SUCH_RANGE = 416
_BUSY = 429
_BUSY_CODES = ("throttl", "slowdown", "limitexceeded", "requesttimeout", "toomanyrequests")
"""In the codes of Amazon's services, which say so with the status 400, too."""
_STATUS = ("status", "status_code", "code")
_LIBRARIES = {
    "aiobotocore", "aiohttp", "azure", "botocore", "fsspec", "gcsfs", "google", "http", "httpx",
    "huggingface_hub", "requests", "urllib3",
}  # fmt: skip
"""Clients of storages, whose errors are of classes of their own."""


class StorageError(OSError):
    """No attempt has succeeded: who asked for something larger does not ask again."""


@final
@dataclass(slots=True)
class Retries:
    """Counts how often a storage was asked again; threads may share it."""

    count: int = 0
    _lock: Lock = field(default_factory=new_lock)

    def add(self) -> None:
        """Count one more."""
        with self._lock:
            self.count += 1

    def take(self) -> int:
        """Return the count, and begin at 0: what is counted meanwhile comes next time."""
        with self._lock:
            taken, self.count = self.count, 0
        return taken


def attempt(call: Callable[[], T], retries: Retries) -> T:
    """Call, and again after a failure that may pass: a lost connection, a timeout, a busy server.

    Raises:
        Exception: what the last attempt raised, or the first that no other attempt would mend.
    """
    for number in count(1):
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - raised again, unless another attempt is made
            pause = _pause_after(error, number)
        retries.add()
        time.sleep(pause)
    raise AssertionError("the last attempt returns or raises")


async def attempt_later(call: Callable[[], Awaitable[T]], retries: Retries) -> T:
    """The same on an event loop, which goes on with others during the pauses."""
    for number in count(1):
        try:
            return await call()
        except Exception as error:  # noqa: BLE001 - as above
            pause = _pause_after(error, number)
        retries.add()
        await asyncio.sleep(pause)
    raise AssertionError("the last attempt returns or raises")


def _pause_after(error: Exception, number: int) -> float:
    """Seconds until the next attempt; raises where there is none."""
    # zipfile says of what it could not read that it is no archive.
    origin = error.__context__ if isinstance(error, BadZipFile) else error
    if isinstance(origin, StorageError) or not may_pass(error):
        raise_failure(error)
    if number == _ATTEMPTS:
        said = f"{type(error).__name__}: {error}, after {_ATTEMPTS} attempts"
        raise StorageError(errno.EIO, said) from error
    return float(_FIRST_PAUSE * 2 ** (number - 1))


def may_pass(error: Exception) -> bool:
    """Whether another attempt may succeed; after the last one, it still may."""
    # fsspec calls a busy HTTP server a file that is not found, and zipfile a lost connection one
    # that is no archive.
    origin = error.__context__ if isinstance(error, BadZipFile) else error.__cause__
    if isinstance(error, (BadZipFile, FileNotFoundError)) and isinstance(origin, Exception):
        return may_pass(origin)
    if isinstance(error, _TIMEOUTS):
        return True
    if isinstance(error, OSError) and error.errno in _LASTING:
        return False
    if isinstance(error, _FINAL) or _status(error) in _REFUSALS:
        return False
    return isinstance(error, (OSError, EOFError)) or _is_of_client(error)


def raise_failure(error: Exception) -> NoReturn:
    """Raise what a storage raised, as an OSError with a number if it is a failure of the storage.

    What has none is taken for damage of the content, and is left out where bad records are. So a
    file that has become shorter than the range that is asked for stays what it is.
    """
    number, status = getattr(error, "errno", None), _status(error)
    if number is None:
        is_failure = isinstance(error, (ConnectionError, *_TIMEOUTS)) or _is_of_client(error)
    else:  # s3fs gives this one to whatever a server refuses
        is_failure = number == errno.EINVAL and _is_of_client(error.__cause__)
    if not is_failure or status == _NO_SUCH_RANGE:
        raise error
    number = errno.EACCES if status in _NO_RIGHT else errno.EIO
    raise OSError(number, f"{type(error).__name__}: {error}") from error


def _status(error: Exception) -> int | None:
    """What a server answered; each client has it in another place."""
    cause = error.__cause__
    if "aiohttp.http_exceptions" in (type(error).__module__, type(cause).__module__):
        return None  # of a connection that was cut; its 400 is no answer of a server
    responses = [getattr(one, "response", None) for one in (error, cause)]
    for response in responses:
        if isinstance(response, Mapping):  # of botocore
            code = str(response.get("Error", {}).get("Code")).lower()
            number = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            busy = any(said in code for said in _BUSY_CODES)
            return _BUSY if busy else number if isinstance(number, int) else None
    for holder in (error, *responses):
        for name in _STATUS:  # one after another: aiohttp has two, and warns of the second
            if isinstance(number := getattr(holder, name, None), int):
                return number
    return None


def _is_of_client(error: BaseException | None) -> bool:
    """By its class; gcsfs also raises a ValueError of Python's for what is refused."""
    if type(error).__module__.partition(".")[0] in _LIBRARIES:
        return True
    return isinstance(error, ValueError) and _raised_in(error).partition(".")[0] == "gcsfs"


def _raised_in(error: BaseException) -> str:
    """The module whose code raised an error."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return str(frames[-1].f_globals.get("__name__")) if frames else ""
