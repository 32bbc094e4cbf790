"""Folders on this machine: replaced as a whole, and reached by links."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Mapping


def store_local_folder(target: str, contents: Mapping[str, bytes]) -> None:
    """Write a folder of small files aside and rename it into the place of ``target``."""
    aside = f"{target}.{uuid.uuid4().hex[:8]}.part"
    old = f"{aside}.old.part"
    try:
        for name, content in contents.items():
            path = f"{aside}/{name}"
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(content)
        if os.path.isdir(target):
            os.rename(target, old)
        os.rename(aside, target)
    except BaseException:
        if os.path.isdir(old) and not os.path.exists(target):
            os.rename(old, target)
        shutil.rmtree(aside, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)


def leads_back(link: str) -> bool:
    """Whether a link is to a folder on the way to it: there is no end to what is below it."""
    target, folder = os.path.realpath(link), link
    while folder != (folder := os.path.dirname(folder)):
        if os.path.realpath(folder) == target:
            return True
    return False
