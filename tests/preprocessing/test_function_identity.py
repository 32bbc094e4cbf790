"""What is kept for a function is kept for it alone: what changes its results changes its name."""

from __future__ import annotations

import functools
import sys
import textwrap
import types

import numpy as np
import pytest
import torch

from torch_distinput.preprocessing.analysis.function_identity import identify
from torch_distinput.preprocessing.analysis.user_modules import UnknownIdentityError

TEMPLATE = """
    import functools, re

    LIMIT = {0}

    def scaled(x):
        return x * {1}

    def again(x):
        return again(x - 1) if x else scaled(x)

    @functools.lru_cache
    def cached(x):
        return x * {1}

    class Clean:
        limit = {0}

        def __init__(self, part):
            self.part = part

        @staticmethod
        def half(x):
            return x / {1}

        @property
        def whole(self):
            return {1}

        def __call__(self, x):
            return Clean.half(x)

    def uses_value(x):
        return x + LIMIT

    def uses_function(x):
        return scaled(x)

    def uses_recursion(x):
        return again(x)

    def uses_cached(x):
        return cached(x)

    def uses_class(x):
        return Clean(1)(x)

    def inside(x):
        return [y for y in map(lambda z: z + LIMIT, x)]

    instance = Clean(1)
    method = Clean(1).__call__
    with_state = Clean([scaled])
    partial = functools.partial(scaled)
"""


def namespace(limit=1, factor=2):
    """A module of the user's, as a process would have imported it."""
    found = {"__name__": "job"}
    exec(textwrap.dedent(TEMPLATE).format(limit, factor), found)  # noqa: S102
    return found


NAMES = [
    "instance",
    "method",
    "with_state",
    "partial",
    "uses_function",
    "uses_recursion",
    "uses_cached",
    "uses_class",
    "cached",
]


@pytest.mark.parametrize("name", ["uses_value", "inside", *NAMES])
def test_the_same_is_the_same_again(name):
    """Another import of the same text has the same identity."""
    assert identify(namespace()[name]) == identify(namespace()[name])


@pytest.mark.parametrize("name", NAMES)
def test_code_that_it_calls_is_part_of_it(name):
    """A function by a global name, the class of an object, what a cache or a partial wraps."""
    assert identify(namespace()[name]) != identify(namespace(factor=3)[name])


@pytest.mark.parametrize("name", ["uses_value", "inside", "instance", "uses_class"])
def test_values_that_it_reads_are_part_of_it(name):
    """A global value, also of a function inside, and an attribute of a class."""
    assert identify(namespace()[name]) != identify(namespace(limit=3)[name])


def test_what_is_tried_is_part_of_it():
    """The range of a ``try`` is not in the code itself."""
    code = compile("def fn(x):\n try:\n  return x()\n except ValueError:\n  return 0\n", "", "exec")
    fn = next(value for value in code.co_consts if hasattr(value, "co_code"))
    if not hasattr(fn, "co_exceptiontable"):
        pytest.skip("the ranges are in the code before Python 3.11")
    assert identify(fn) != identify(fn.replace(co_exceptiontable=b""))


def calls_a_module(limit=1, factor=2):
    """What calls a function of a package of the user's, and reads a value there."""
    package, inner = types.ModuleType("package"), types.ModuleType("package.inner")
    vars(inner).update(namespace(limit, factor), __name__="package.inner")
    vars(package).update(inner=inner, again=package, unused=limit)
    found = {"__name__": "job", "package": package}
    exec("def fn(x): return package.inner.uses_function(x), package.again", found)  # noqa: S102
    exec("def other(x): return package.inner.LIMIT", found)  # noqa: S102
    return found["fn"], found["other"]


def test_what_it_finds_in_a_module_is_part_of_it():
    """A function with what that calls, or a value; not what is there beside."""
    for number, change in ((0, {"factor": 3}), (1, {"limit": 3})):
        before, again = (identify(calls_a_module()[number]) for _ in range(2))
        assert before == again
        assert before != identify(calls_a_module(**change)[number])
    assert identify(calls_a_module()[0]) == identify(calls_a_module(limit=3)[0])


def test_names_of_arguments_are_part_of_it():
    """Whoever calls it by them gets another result; the code has numbers in their place."""
    one, other = {"__name__": "job"}, {"__name__": "job"}
    exec("def fn(low, high): return high - low", one)  # noqa: S102
    exec("def fn(high, low): return low - high", other)  # noqa: S102
    assert one["fn"](low=1, high=3) != other["fn"](low=1, high=3)
    assert identify(one["fn"]) != identify(other["fn"])


@pytest.mark.parametrize(
    "make",
    [torch.arange, np.arange, lambda n: torch.nn.Linear(n, 1, bias=False).requires_grad_(False)],
)
def test_tensors_count_by_their_values(make):
    """Not by where they lie in memory."""

    def held(values):
        return lambda x: (x, values)

    def filled(n):
        values = make(n)
        if isinstance(values, torch.nn.Module):
            values.weight.fill_(1.0)
        return held(values)

    assert identify(filled(5)) == identify(filled(5))
    assert identify(filled(5)) != identify(filled(6))


def test_what_cannot_be_told_is_said():
    """A generator that a function reads by a global name may be anywhere."""
    found = {"__name__": "job", "rows": (row for row in [])}
    exec("def fn(x): return next(rows)", found)  # noqa: S102
    with pytest.raises(UnknownIdentityError, match="generator"):
        identify(functools.partial(found["fn"]))


WAYS = {
    "a module": "import helper_of_job\n    return helper_of_job.clean(x)",
    "a function": "from helper_of_job import clean\n    return clean(x)",
    "a module of a package": "import pack_of_job.deep\n    return pack_of_job.deep.clean(x)",
    "by another name": "import pack_of_job.deep as d\n    return d.clean(x)",
    "from a package": "from pack_of_job import deep\n    return deep.clean(x)",
    "relatively": "from .deep import clean\n    return clean(x)",
    "in a function inside": (
        "def g():\n        import helper_of_job as h\n        return h.clean(x)\n    return g()"
    ),
}


class TestImportsInside:
    """A module of the user's that a function imports when it is called."""

    @pytest.fixture
    def identity(self, tmp_path, monkeypatch):
        """The identity of a function of this body, beside modules with this factor."""
        monkeypatch.syspath_prepend(tmp_path)
        (tmp_path / "pack_of_job").mkdir()
        (tmp_path / "pack_of_job" / "__init__.py").touch()

        def identity(body, factor):
            for name in [name for name in sys.modules if "_of_job" in name]:
                del sys.modules[name]
            sys.path_importer_cache.clear()
            for path in ("helper_of_job.py", "pack_of_job/deep.py"):
                (tmp_path / path).write_text(f"def clean(x):\n    return x * {factor}\n" * factor)
            known = {"__name__": "pack_of_job.job", "__package__": "pack_of_job"}
            exec(f"def fn(x):\n    {body}\n", known)  # noqa: S102
            return identify(known["fn"])

        return identity

    @pytest.mark.parametrize("body", WAYS.values(), ids=WAYS)
    def test_belong_to_it(self, identity, body):
        assert identity(body, 1) == identity(body, 1)
        assert identity(body, 1) != identity(body, 2)

    def test_more_names_than_fit_into_a_byte(self, identity):
        """Its place among the names has a part of its own then."""
        body = "; ".join(f"name_{number}" for number in range(300))
        body += "; import helper_of_job; return helper_of_job.clean(x)"
        assert identity(body, 1) != identity(body, 2)

    @pytest.mark.parametrize(
        "body", ["import json; return json.loads(x)", "import no_such_package; return x"]
    )
    def test_what_is_not_the_users_is_known_by_its_name(self, identity, body):
        assert identity(body, 1) == identity(body, 2)

    @pytest.mark.parametrize("reason", ["raise SystemExit(1)", "1 / 0", "import no_such_package"])
    def test_one_that_cannot_be_imported(self, identity, tmp_path, reason):
        """Nothing is kept."""
        (tmp_path / "pack_of_job" / "broken.py").write_text(reason)
        with pytest.raises(UnknownIdentityError, match="imports pack_of_job.broken"):
            identity("import pack_of_job.broken", 1)

    def test_one_that_lacks_another_of_a_longer_name(self, identity, tmp_path):
        """It is there, and its code would be left out."""
        (tmp_path / "part_of_job.py").write_text("import my_part_of_job")
        with pytest.raises(UnknownIdentityError, match="imports part_of_job"):
            identity("import part_of_job", 1)

    @pytest.mark.parametrize("name", ["pack_of_job.fast", ".fast"])
    def test_one_that_is_not_there(self, identity, tmp_path, name):
        """A function may do without it, and is another one when it is there."""
        body = f"try:\n        from {name} import clean\n    except ImportError:\n        pass\n"
        body += "    return clean(x)"
        without = identity(body, 1)
        assert without == identity(body, 1)
        (tmp_path / "pack_of_job" / "fast.py").write_text("def clean(x):\n    return x\n")
        assert without != identity(body, 1)
