"""Modules, methods and descriptors that a function reaches as values are part of its identity."""

from __future__ import annotations

import functools
import importlib
import sys
import types

import numpy as np
import pytest
import torch

from torch_distinput.preprocessing.analysis.function_identity import identify
from torch_distinput.preprocessing.analysis.user_modules import UnknownIdentityError

HOLDERS = {
    "a closure": "def make(m): return lambda x: m.clean(x)\nimport HELPER\nfn = make(HELPER)",
    "a default": "import HELPER\ndef fn(x, m=HELPER): return m.clean(x)",
    "a partial": "import functools, HELPER\n"
    "def g(m, x): return m.clean(x)\nfn = functools.partial(g, HELPER)",
    "an instance": "import HELPER\nclass C:\n  def __init__(self): self.m = HELPER\n"
    "  def __call__(self, x): return self.m.clean(x)\nfn = C()",
    "a class": "import HELPER\nclass C:\n  m = HELPER\n"
    "  def __call__(self, x): return self.m.clean(x)\nfn = C()",
    "a dict": "import HELPER\nKNOWN = {'a': HELPER}\ndef fn(x): return KNOWN['a'].clean(x)",
}

PAIRS = {
    "a static method": ("@staticmethod\n  def g(x): ...", "def g(x): ..."),
    "a class method": ("@staticmethod\n  def g(x): ...", "@classmethod\n  def g(x): ..."),
    "a kept property": ("@cached_property\n  def g(x): ...", "def g(x): ..."),
    "a property of one's own": (
        "class P(property):\n    def __get__(self, *_): return 1\n  g = P()",
        "class P(property):\n    def __get__(self, *_): return 2\n  g = P()",
    ),
    "a class called like another": (
        "class cached_property:\n    def __get__(self, *_): return 1\n  g = cached_property()",
        "class cached_property:\n    def __get__(self, *_): return 2\n  g = cached_property()",
    ),
    "a bound function": (
        "def __init__(self): self.g = MethodType(lambda s, x: x + 1, self)",
        "def __init__(self): self.g = MethodType(lambda s, x: x + 2, self)",
    ),
    "names of locals": (
        "def g(x): a = x; b = 2 * x; return locals()['a']",
        "def g(x): b = x; a = 2 * x; return locals()['a']",
    ),
    "arguments without a name": ("def g(x, /, **k): ...", "def g(x, **k): ..."),
    "a set that holds the class": (
        "g = set()\n  def __init_subclass__(cls): cls.g.add(cls)",
        "g = set()\n  def __init_subclass__(cls): cls.g.add(1)",
    ),
}


@pytest.fixture
def identity(tmp_path, monkeypatch):
    """The identity of ``fn`` in this code, beside a module whose own import has this factor."""
    monkeypatch.syspath_prepend(tmp_path)

    def identity(code, factor):
        (tmp_path / "held_of_job.py").write_text(
            "def clean(x):\n    import deep_of_job\n    return deep_of_job.clean(x)\n"
        )
        (tmp_path / "deep_of_job.py").write_text(f"FACTOR = {'0+' * factor}{factor}\n")
        for name in [name for name in sys.modules if "_of_job" in name]:
            del sys.modules[name]
        sys.path_importer_cache.clear()
        known = {"__name__": "job"}
        monkeypatch.setitem(sys.modules, "job", types.ModuleType("job"))
        exec(code.replace("HELPER", "held_of_job"), known)  # noqa: S102
        return identify(known["fn"])

    return identity


@pytest.mark.parametrize("code", HOLDERS.values(), ids=HOLDERS)
def test_a_module_in(identity, code):
    """Any of it may be used, and of what it imports when it is called."""
    assert identity(code, 1) == identity(code, 1)
    assert identity(code, 1) != identity(code, 2)


def test_a_module_without_a_source(identity):
    """Nothing is kept."""
    code = "import types\nmade = types.ModuleType('made')\ndef fn(x, m=made): return m"
    with pytest.raises(UnknownIdentityError, match="module made, of which the source is not known"):
        identity(code, 1)


@pytest.mark.parametrize("name", PAIRS)
def test_what_a_member_is(identity, name):
    head = "from functools import cached_property\nfrom types import MethodType\n"
    tail = "\nclass D(C): ...\ndef fn(x): return C().g"
    one, other = (f"{head}class C:\n  {body}{tail}" for body in PAIRS[name])
    assert identity(one, 1) == identity(one, 1)
    assert identity(one, 1) != identity(other, 1)


IMPORTS = ["from pack_of_job import sub", "import pack_of_job.sub", "import pack_of_job.sub as sub"]
CALLS = ["sub.clean(x)", "pack_of_job.sub.clean(x)", "sub.clean(x)"]
HELD = {
    "at its top": "{0}\ndef clean(x): return {1}",
    "inside of a function": "def clean(x):\n  {0}\n  return {1}",
    "in a closure": "def make():\n  {0}\n  return lambda x: {1}\nclean = make()",
    "in a package's": "from pack_of_job import above\nclean = above",
}


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize(("name", "call"), [*zip(IMPORTS, CALLS, strict=True)])
@pytest.mark.parametrize("is_folder", [False, True])
def test_a_module_inside_of_a_package(tmp_path, monkeypatch, held, name, call, is_folder):
    """It is what the code of a module or a closure imports, though nothing but the package is held.

    The package may be a folder without a file of its own.
    """
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "pack_of_job").mkdir()
    if not is_folder:
        (tmp_path / "pack_of_job" / "__init__.py").touch()
    (tmp_path / "pack_of_job" / "above.py").write_text("from . import sub\n")

    def identity(factor):
        (tmp_path / "pack_of_job" / "sub.py").write_text(f"def clean(x): return {factor}\n")
        (tmp_path / "held_of_job.py").write_text(HELD[held].format(name, call))
        for known in [known for known in sys.modules if "_of_job" in known]:
            del sys.modules[known]
        sys.path_importer_cache.clear()
        module = importlib.import_module("held_of_job")
        return [identify(module.clean), identify(lambda x, m=module: m.clean(x))]

    first, same, other = identity(1), identity(1), identity(22)
    assert first == same
    assert not {*first} & {*other}


HOLDING = {
    "a partial": lambda package: functools.partial(lambda p, x: p.sub.clean(x), package),
    "a list": lambda package: lambda x, held=[package]: held[0].sub.clean(x),
    "a dict": lambda package: {"m": package},
}


@pytest.mark.parametrize("how", HOLDING)
@pytest.mark.parametrize("is_folder", [False, True])
def test_a_package_that_something_holds(tmp_path, monkeypatch, how, is_folder):
    """Which module of it is used no code says."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "pack_of_job").mkdir()
    if not is_folder:
        (tmp_path / "pack_of_job" / "__init__.py").touch()

    def identity(factor):
        (tmp_path / "pack_of_job" / "sub.py").write_text(f"def clean(x): return {factor}\n")
        for known in [known for known in sys.modules if "_of_job" in known]:
            del sys.modules[known]
        sys.path_importer_cache.clear()
        importlib.import_module("pack_of_job.sub")
        return identify(HOLDING[how](sys.modules["pack_of_job"]))

    assert identity(1) == identity(1) != identity(22)


def test_modules_that_are_known_by_their_names():
    """Installed ones, whatever torch calls their files."""
    for ops in (torch.ops, torch.ops.aten, np.linalg):
        assert identify(lambda x, ops=ops: ops(x)) == identify(lambda x, ops=ops: ops(x))


def test_an_installed_namespace_is_installed_before_it_is_imported(tmp_path, monkeypatch):
    """As google.cloud is: it has no file that says where it lies."""
    folder = tmp_path / "site-packages"
    (folder / "spaces_of_others").mkdir(parents=True)
    (folder / "spaces_of_others" / "part.py").write_text("def clean(x): return x")
    monkeypatch.syspath_prepend(folder)

    def late(x):
        import spaces_of_others.part  # type: ignore[import-not-found]

        return spaces_of_others.part.clean(x)

    before = identify(late)
    assert "spaces_of_others" not in sys.modules
    late(1)
    assert before == identify(late)


def test_ones_own_module_is_called_like_one_of_python(tmp_path, monkeypatch):
    """It is imported late, and stands before Python's on the path."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "colorsys", None)  # afterwards it is as it was, or not there

    def identity(factor):
        (tmp_path / "colorsys.py").write_text(f"def clean(x): return {factor}")
        sys.path_importer_cache.clear()
        known = {"__name__": "job"}
        exec("def fn(x):\n  import colorsys\n  return colorsys.clean(x)", known)  # noqa: S102
        sys.modules.pop("colorsys", None)
        return identify(known["fn"])

    found = [identity(factor) for factor in ("1", "222")]
    assert found[0] != found[1]


@pytest.mark.parametrize("how", ["by its name", "late"])
def test_ones_own_part_of_a_package_that_is_installed(tmp_path, monkeypatch, how):
    """A namespace may have folders in both places."""
    installed, own = tmp_path / "site-packages", tmp_path / "own"
    for folder in (installed, own):
        (folder / "corp_of_job" / folder.name).mkdir(parents=True)
        monkeypatch.syspath_prepend(folder)

    def identity(factor):
        text = f"def clean(x): return {factor}"
        (own / "corp_of_job" / "own" / "part.py").write_text(text)
        for known in [known for known in sys.modules if "_of_job" in known]:
            del sys.modules[known]
        sys.path_importer_cache.clear()
        if how == "by its name":
            return identify(importlib.import_module("corp_of_job.own.part").clean)
        known = {"__name__": "job"}
        exec(  # noqa: S102
            "def fn(x):\n  from corp_of_job.own import part\n  return part.clean(x)", known
        )
        return identify(known["fn"])

    assert identity(1) == identity(1)
    assert identity(1) != identity(22)


def test_an_extension(tmp_path, monkeypatch):
    """By its bytes: it has no source."""
    module = types.ModuleType("fast_of_job")
    module.__file__ = str(tmp_path / "fast_of_job.so")
    monkeypatch.setitem(sys.modules, "fast_of_job", module)

    def identity(content):
        (tmp_path / "fast_of_job.so").write_bytes(content)
        return identify([module])

    assert identity(b"\0\1") == identity(b"\0\1") != identity(b"\0\2")


@pytest.mark.parametrize("kind", ["set", "frozenset"])
def test_a_set_whose_members_name_it(kind):
    """Each of them would walk it anew, with one less in it."""

    def registry(count, factor=1):
        known = {"__name__": "job"}
        lines = [f"def f{n}(x): return len(KNOWN) * x * {factor}" for n in range(count)]
        names = ", ".join(f"f{n}" for n in range(count))
        lines.append(f"KNOWN = {kind}([{names}])\ndef fn(x): return KNOWN")
        exec("\n".join(lines), known)  # noqa: S102
        return identify(known["fn"])

    assert registry(30) == registry(30)
    assert len({registry(30), registry(30, 2), registry(29)}) == 3


def test_the_order_of_a_set_is_no_part_of_it():
    """Functions lie in a set by their place in memory, and these have one helper in common."""
    code = "def helper(x): return x\n"
    code += "".join(f"def f{n}(x): return helper(x) + {n}\n" for n in range(9))
    code += "ALL = {f0, f1, f2, f3, f4, f5, f6, f7, f8}\ndef fn(x): return [f(x) for f in ALL]"
    held, found = [], set()
    for _ in range(9):
        known = {"__name__": "job"}
        exec(code, known)  # noqa: S102
        held.append(known)
        found.add(identify(known["fn"]))
    assert 1 == len(found)


@pytest.mark.parametrize("name", ["job", "queue", "torch_like"])
def test_a_module_of_the_users_may_be_called_like_one_of_python(name, monkeypatch):
    module = types.ModuleType(name)
    module.__file__ = f"/home/me/{name}.py"
    monkeypatch.setitem(sys.modules, name, module)
    functions = {}
    for factor in (1, 2):
        known = {"__name__": name}
        exec(f"def fn(x): return x * {factor}", known)  # noqa: S102
        functions[factor] = known["fn"]
    assert identify(functions[1]) != identify(functions[2])


def test_an_annotation_without_an_identity_does_not_hide_the_others():
    made = []
    for factor in (1, 2):
        known = {"__name__": "job"}
        head = f"import threading\nclass A:\n  def g(self): return {factor}\nclass Lock:\n"
        head += "  def __init__(self): self.lock = threading.Lock()\n"
        head += "  def __repr__(self): return 'Lock'\n"
        code = f"{head}def fn(x: Lock(), y: A): ..."
        exec(compile(code, "job", "exec", dont_inherit=True), known)  # noqa: S102
        made.append(known["fn"])
    assert identify(made[0]) != identify(made[1])


def test_a_script_that_another_program_started(monkeypatch):
    """As in a worker of Ray, whose main module is its own: functions have the name all the same."""
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    sys.modules["__main__"].__file__ = pytest.__file__
    functions = {}
    for factor in (1, 2):
        known = {"__name__": "__main__"}
        exec(f"def fn(x): return x * {factor}", known)  # noqa: S102
        functions[factor] = known["fn"]
    assert identify(functions[1]) != identify(functions[2])
