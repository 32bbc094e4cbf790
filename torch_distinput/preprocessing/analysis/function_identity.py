"""What tells one function from another in another process, for results that are kept."""

from __future__ import annotations

import dis
import functools
import hashlib
import importlib.util
import io
import pickle
import sys
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import torch

from torch_distinput.data.batch.serialized import view_bytes
from torch_distinput.preprocessing.layers.features import Features
from torch_distinput.preprocessing.layers.layer import Layer

_CACHED = type(functools.lru_cache(maxsize=1)(len))
_STANDARD = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
_INSTALLED = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
_ADDED = {
    "__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__",
    "__annotations_cache__", "__firstlineno__", "__static_attributes__", "__abstractmethods__",
    "__orig_bases__", "__parameters__", "__type_params__", "__signature__", "__slotnames__",
    "_abc_impl",
}  # fmt: skip
"""What Python adds to a class, documentation, and what ``_describe_types`` says."""
_COMPILED = "__pydantic_"
_WRITTEN = {"__pydantic_config__", "__pydantic_decorators__", "__pydantic_fields__"}
"""Of what pydantic adds to a class, what the user wrote. The rest is compiled from it, and has
addresses of this process."""
_SCHEMAS = ("SchemaValidator", "SchemaSerializer")
"""What pydantic compiles, of which nothing tells what it was made from."""
_MAIN = ("__main__", "__mp_main__")
"""Scripts; in processes that others start for them (Ray), the file of the module is another one."""
_ADDRESS = " at 0x"
_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType)


class UnknownIdentityError(Exception):
    """A value that cannot be told from others: nothing may be kept under its name."""


def identify(value: Any) -> str:
    """Return text that is the same for the same value, in any process.

    Values count by their pickle, in which functions and classes are more than their names: of a
    function its code, defaults, closure and the values of the global names in it, of a class its
    members. What is installed, or in the standard library, is known by its name alone.

    Raises:
        UnknownIdentityError: for a value that cannot be pickled.
    """
    return _Walk().digest(value)


def find_named_parts(value: Layer | Features) -> list[Any]:
    """What has functions, classes and other modules, which a layer's fingerprint only names."""
    found: list[Any] = []
    layers = [layer for _, layer in value.items()] if isinstance(value, Features) else [value]
    for layer in layers:
        if isinstance(layer, Layer):
            found += [type(layer), layer.get_config()]
        else:
            found.append(layer)
    return found


@final
class _Walk:
    """A way through values, on which functions and classes may come again."""

    def __init__(self) -> None:
        self._met: dict[int, tuple[int, Any]] = {}  # the values too: they keep their ids

    def digest(self, value: Any) -> str:
        content = io.BytesIO()
        try:
            _Pickler(content, self).dump(value)
        except UnknownIdentityError:
            raise
        except Exception as error:
            msg = f"a {type(value).__qualname__} ({error})"
            raise UnknownIdentityError(msg) from error
        return hashlib.sha256(content.getvalue()).hexdigest()

    def describe(self, value: Any) -> str | None:
        """Say what a value is where its pickle does not; None where it does."""
        if isinstance(value, (Layer, Features)):
            return f"layer {value.fingerprint()} {self.digest(find_named_parts(value))}"
        if isinstance(value, torch.Tensor):  # its pickle has addresses
            array = view_bytes(value.detach().cpu().contiguous())
            content = hashlib.sha256(array.data).hexdigest()
            return f"tensor {value.dtype} {tuple(value.shape)} {content}"
        if isinstance(value, types.ModuleType):
            return self._describe_module(value)
        if isinstance(value, types.MappingProxyType):  # such as the metadata of a dataclass's field
            return f"mapping {self.digest(dict(value))}"
        if isinstance(value, (set, frozenset)):  # in an order that no other process shares
            return f"set {sorted(self._branch().digest(member) for member in value)}"
        if (schema := self._describe_schema(value)) is not None:
            return schema
        if isinstance(value, types.CodeType):
            return f"code {self._describe_code(value)}"
        if (parts := _take_apart(value)) is not None:
            return self._meet(value) or f"parts {self.digest((type(value), *parts))}"
        if isinstance(value, (types.FunctionType, type)):
            return self._describe_definition(value)
        return None

    def _describe_schema(self, value: Any) -> str | None:
        """Say what is in parts of pydantic that have addresses of this process."""
        kind = type(value).__name__
        if type(value).__module__.partition(".")[0] not in ("pydantic", "pydantic_core"):
            return None
        if kind == "Decorator":  # a validator of a model, say
            return f"decorator {self.digest((value.cls_var_name, value.info))}"
        if kind == "TypeAdapter":
            return f"adapter {self.digest((value._type, value._config))}"  # noqa: SLF001
        if kind in _SCHEMAS:
            raise UnknownIdentityError(f"a {kind} of pydantic")
        return None

    def _branch(self) -> _Walk:
        """A way of its own from here on: what it meets has no number for the others."""
        branch = _Walk()
        branch._met = dict(self._met)
        return branch

    def _meet(self, value: Any) -> str:
        """Which of those that were met it is; empty if it is new."""
        if id(value) in self._met:
            return f"again {self._met[id(value)][0]}"
        self._met[id(value)] = (len(self._met), value)
        return ""

    def _describe_module(self, module: types.ModuleType) -> str:
        """Say what stands in a module that is a value: any of it may be used."""
        name = f"module {module.__name__}"
        if not _is_of_user(module.__name__) or self._meet(module):
            return name
        try:
            source = Path(getattr(module, "__file__", None) or "").read_bytes()
        except OSError as error:
            msg = f"the module {module.__name__}, of which the source is not known ({error})"
            raise UnknownIdentityError(msg) from error
        code = compile(source, module.__name__, "exec", dont_inherit=True)
        imported = list(_import_late(vars(module), code))
        return f"{name} {hashlib.sha256(source).hexdigest()} {self.digest(imported)}"

    def _describe_definition(self, value: Any) -> str:
        name = f"{type(value).__name__} {value.__module__}.{value.__qualname__}"
        if again := self._meet(value):
            return f"{name} {again}"
        is_of_user = _is_of_user(value.__module__ or "")
        if isinstance(value, type):
            return f"{name} {self._describe_class(value)}" if is_of_user else name
        parts: list[Any] = [value.__defaults__, value.__kwdefaults__, _read_closure(value)]
        if is_of_user:
            parts += [value.__code__, value.__dict__, _read_globals(value)]
            parts.append(self._describe_types(value))
        return f"{value.__qualname__} {list(map(self.digest, parts))}"

    def _describe_class(self, kind: type) -> list[str]:
        members = sorted(_find_members(kind), key=lambda member: member[0])
        said = [self.digest((type(kind), kind.__bases__)), *self._describe_types(kind)]
        return said + [f"{name} {self.digest(member)}" for name, member in members]

    def _describe_types(self, value: Any) -> list[str]:
        """Say what types a function or class names, of which it may make a schema."""
        said = []
        for name, kind in _read_types(value).items():
            met = dict(self._met)
            try:
                said.append(f"{name} {self.digest(kind)}")
            except UnknownIdentityError:
                if _ADDRESS in repr(kind):
                    raise
                self._met = met  # what was met on the way is said nowhere
                said.append(f"{name} {kind!r}")
        return said

    def _describe_code(self, code: types.CodeType) -> list[Any]:
        """Code, and that of the functions inside."""
        table = getattr(code, "co_exceptiontable", b"")  # of Python 3.11: what is tried
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
        names = (code.co_names, code.co_varnames, code.co_cellvars, code.co_freevars)
        constants = [self.digest(value) for value in code.co_consts]
        return [code.co_code.hex(), table.hex(), code.co_flags, counts, names, constants]


@final
class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, walk: _Walk) -> None:
        super().__init__(file, protocol=4)
        self._walk = walk

    def persistent_id(self, value: Any) -> str | None:
        return self._walk.describe(value)


def _is_of_user(name: str) -> bool:
    """Whether a module is the user's own, which may change from run to run."""
    if name in _MAIN:
        return True
    package, file = name.partition(".")[0], getattr(sys.modules.get(name), "__file__", None)
    if package == "torch_distinput":
        return False
    if file is None:
        return package not in sys.stdlib_module_names
    return not file.startswith((*_STANDARD, *_INSTALLED))  # a user may have a queue.py, too


def _finds_user_module(name: str) -> bool:
    """Whether a name to import is of the user's own: not of a package that is not there."""
    package = name.partition(".")[0]
    if package in sys.modules:
        return _is_of_user(package)
    spec = importlib.util.find_spec(package)
    is_installed = spec is None or (spec.origin or "").startswith(_INSTALLED)
    return not is_installed and _is_of_user(package)


def _take_apart(value: Any) -> tuple[Any, ...] | None:
    """What makes up a function in another one's dress, which pickle says by its name or not."""
    if isinstance(value, _CACHED):
        return (value.__wrapped__,)
    if isinstance(value, types.MethodType):
        return value.__self__, value.__func__
    if isinstance(value, (staticmethod, classmethod)):
        return (value.__func__,)
    if isinstance(value, property):
        return value.fget, value.fset, value.fdel, getattr(value, "__dict__", None)
    if (type(value).__module__, type(value).__name__) == ("functools", "cached_property"):
        return value.attrname, value.func  # not its lock
    return None


def _read_closure(function: types.FunctionType) -> list[Any]:
    return [_read_cell(cell) for cell in function.__closure__ or ()]


def _read_cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _read_globals(function: types.FunctionType) -> list[tuple[str, Any]]:
    """The values of the global names in a function, and in those inside.

    Of the user's modules what is named beside them, as in ``module.function(x)``, and of those in
    these: which name belongs to which module the code does not say. So with what it imports.
    """
    names = sorted(_find_names(function.__code__))
    found: list[tuple[str, Any]] = []
    namespaces, met = [("", function.__globals__)], {function.__module__}
    imported = _import_late(function.__globals__, function.__code__)
    namespaces += [(f"{module.__name__}.", vars(module)) for module in imported]
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
                if _is_of_user(value.__name__):
                    namespaces.append((f"{prefix}{name}.", vars(value)))
    return found


def _import_late(known: dict[str, Any], code: types.CodeType) -> Iterator[types.ModuleType]:
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
            yield __import__(step.argval, known, None, wanted.argval or (), level.argval)
        except ModuleNotFoundError as error:
            missing, wanted_name = f".{error.name}", f".{step.argval}"
            if missing.endswith(wanted_name) if level.argval else missing == wanted_name:
                continue  # its function does without it, and is another when it is there
            msg = f"code that imports {step.argval} ({error})"
            raise UnknownIdentityError(msg) from error
        except (Exception, SystemExit) as error:  # a script may end itself
            msg = f"code that imports {step.argval or '.'} ({error})"
            raise UnknownIdentityError(msg) from error
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _import_late(known, inner)


def _find_names(code: types.CodeType) -> set[str]:
    inner = (value for value in code.co_consts if isinstance(value, types.CodeType))
    return set(code.co_names).union(*map(_find_names, inner))


def _find_members(kind: type) -> Iterator[tuple[str, Any]]:
    """What the body of a class says, without what Python adds."""
    for name, member in vars(kind).items():
        if name.startswith(_COMPILED) and name not in _WRITTEN:
            continue
        elif not isinstance(member, _DESCRIPTORS) and name not in _ADDED:
            yield name, member


def _read_types(value: Any) -> dict[str, Any]:
    """The annotations of a function or class, and its generic bases, as in ``Base[int]``."""
    bases = {"bases": vars(value)["__orig_bases__"]} if "__orig_bases__" in vars(value) else {}
    try:
        return {**bases, **value.__annotations__}
    except Exception:  # noqa: BLE001 - from Python 3.14 on they may name what is not there
        return bases
