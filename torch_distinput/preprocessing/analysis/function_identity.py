"""What tells one function from another in another process, for results that are kept."""

from __future__ import annotations

import functools
import hashlib
import io
import pickle
import types
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, final

import torch

from torch_distinput.data.batch.object_parts import read_closure
from torch_distinput.data.batch.serialized import view_bytes
from torch_distinput.preprocessing.analysis.user_modules import (
    UnknownIdentityError,
    find_submodules,
    import_late,
    is_of_user,
    read_globals,
)
from torch_distinput.preprocessing.layers.features import Features
from torch_distinput.preprocessing.layers.layer import Layer

_CACHED = type(functools.lru_cache(maxsize=1)(len))
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
_ADDRESS = " at 0x"
_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType)


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
        if isinstance(value, (set, frozenset)):
            return self._describe_set(value)
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

    def _describe_set(self, value: AbstractSet[Any]) -> str:
        """Say what is in a set, which is in an order that no other process shares.

        Each member has a way of its own: what it meets has no number for the others.
        """
        if id(value) in self._met:  # on the way to this: a member names the set that it is in
            return f"set {self._meet(value)}"
        members = []
        for member in value:
            way = _Walk()
            way._met = dict(self._met)
            way._meet(value)
            members.append(way.digest(member))
        return f"set {sorted(members)}"

    def _meet(self, value: Any) -> str:
        """Which of those that were met it is; empty if it is new."""
        if id(value) in self._met:
            return f"again {self._met[id(value)][0]}"
        self._met[id(value)] = (len(self._met), value)
        return ""

    def _describe_module(self, module: types.ModuleType) -> str:
        """Say what stands in a module that is a value: any of it may be used."""
        name = f"module {module.__name__}"
        if not is_of_user(module.__name__) or self._meet(module):
            return name
        file = getattr(module, "__file__", None) or ""
        is_folder = not file and hasattr(module, "__path__")
        try:
            source = b"" if is_folder else Path(file).read_bytes()
        except OSError as error:
            msg = f"the module {module.__name__}, of which the source is not known ({error})"
            raise UnknownIdentityError(msg) from error
        text = source if file.endswith(".py") else b""  # an extension imports what it likes
        code = compile(text, module.__name__, "exec", dont_inherit=True)
        imported = list(import_late(vars(module), code))
        parts = [imported, find_submodules(module)]
        return f"{name} {hashlib.sha256(source).hexdigest()} {self.digest(parts)}"

    def _describe_definition(self, value: Any) -> str:
        name = f"{type(value).__name__} {value.__module__}.{value.__qualname__}"
        if again := self._meet(value):
            return f"{name} {again}"
        is_known = not is_of_user(value.__module__ or "")
        if isinstance(value, type):
            return name if is_known else f"{name} {self._describe_class(value)}"
        parts: list[Any] = [value.__defaults__, value.__kwdefaults__, read_closure(value)]
        if not is_known:
            parts += [value.__code__, value.__dict__, read_globals(value)]
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
