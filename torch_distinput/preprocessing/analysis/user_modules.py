"""The user's own modules: which they are, and what of them functions use or import."""

from __future__ import annotations

import dis
import importlib.util
import sys
import sysconfig
import types
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from torch_distinput.data.batch.object_parts import find_names, read_closure

_STANDARD = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
_INSTALLED = {"site-packages", "dist-packages"}
"""Folders of this environment's packages, of those it shares, of the user's and of Debian's."""
_MAIN = ("__main__", "__mp_main__")
"""Scripts; in processes that others start for them (Ray), the file of the module is another one."""


class UnknownIdentityError(Exception):
    """A value that cannot be told from others: nothing may be kept under its name."""


def is_of_user(name: str) -> bool:
    """Whether a module is the user's own, which may change from run to run."""
    if name in _MAIN:
        return True
    package = name.partition(".")[0]
    if package == "torch_distinput":
        return False
    places = _find_places(name) or _find_places(package)
    if not places:
        return package not in sys.stdlib_module_names
    # By place: a user may have a queue.py, too, and a part of a package that is installed.
    return not all(map(_is_installed, places))


def _is_installed(place: str) -> bool:
    path = Path(place)
    is_standard = any(path.is_relative_to(folder) for folder in _STANDARD)
    return is_standard or not _INSTALLED.isdisjoint(path.parts)


def _find_places(name: str) -> list[str]:
    """Where a module comes from: its file, or the folders of a package without one."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if file:
        return [file] if Path(file).is_absolute() else []  # of torch.ops it is some name
    return list(getattr(module, "__path__", ()))


def _finds_user_module(name: str) -> bool:
    """Whether a name to import is of the user's own: not of a package that is not there."""
    package = name.partition(".")[0]
    if package in sys.modules:
        return is_of_user(package)
    spec = importlib.util.find_spec(package)
    if spec is None:
        return False
    # By place, as above; what is built in or frozen has none.
    places = [spec.origin or ""] if spec.has_location else spec.submodule_search_locations or ()
    return not all(map(_is_installed, places))


def read_globals(function: types.FunctionType) -> list[tuple[str, Any]]:
    """The values of the global names in a function, and in those inside.

    Of the user's modules what is named beside them, as in ``module.function(x)``, and of those in
    these: which name belongs to which module the code does not say. So with what it imports.
    """
    names = sorted(find_names(function.__code__))
    found: list[tuple[str, Any]] = []
    namespaces, met = [("", function.__globals__)], {function.__module__}
    modules = [*import_late(function.__globals__, function.__code__), *_read_modules(function)]
    namespaces += [(f"{module.__name__}.", vars(module)) for module in modules]
    while namespaces:
        prefix, known = namespaces.pop()
        for name in names:
            if name not in known:
                continue
            value = known[name]
            if not isinstance(value, types.ModuleType):
                found.append((prefix + name, value))
                continue
            found.append((prefix + name, value.__name__))  # what is used of it has names, too
            if value.__name__ not in met:
                met.add(value.__name__)
                if is_of_user(value.__name__):
                    namespaces.append((f"{prefix}{name}.", vars(value)))
    return found


def _read_modules(function: types.FunctionType) -> list[types.ModuleType]:
    """The user's modules in a closure, or among defaults."""
    held = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    modules = [one for one in held + read_closure(function) if isinstance(one, types.ModuleType)]
    return [module for module in modules if is_of_user(module.__name__)]


def find_submodules(package: types.ModuleType) -> list[types.ModuleType]:
    """What has been imported of a package, which any code that holds it may use."""
    held = [one for one in vars(package).values() if isinstance(one, types.ModuleType)]
    inside = [one for one in held if one.__name__.rpartition(".")[0] == package.__name__]
    return sorted(inside, key=lambda module: module.__name__)


def import_late(known: dict[str, Any], code: types.CodeType) -> Iterator[types.ModuleType]:
    """Import the user's modules that code, or a function inside, imports when it runs.

    Raises:
        UnknownIdentityError: if one cannot be imported.
    """
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    for level, wanted, step in zip(steps, steps[1:], steps[2:], strict=False):
        if step.opname != "IMPORT_NAME":
            continue
        if not level.argval and not _finds_user_module(step.argval):
            continue
        try:
            module = __import__(step.argval, known, None, wanted.argval or (), level.argval)
        except ModuleNotFoundError as error:
            missing, wanted_name = f".{error.name}", f".{step.argval}"
            if missing.endswith(wanted_name) if level.argval else missing == wanted_name:
                continue  # its function does without it, and is another when it is there
            msg = f"code that imports {step.argval} ({error})"
            raise UnknownIdentityError(msg) from error
        except (Exception, SystemExit) as error:  # a script may end itself
            msg = f"code that imports {step.argval or '.'} ({error})"
            raise UnknownIdentityError(msg) from error
        yield module
        inside = wanted.argval or accumulate(step.argval.split(".")[1:], "{}.{}".format)
        places = (f"{module.__name__}.{name}" for name in inside)
        yield from (sys.modules[place] for place in places if place in sys.modules)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from import_late(known, inner)
