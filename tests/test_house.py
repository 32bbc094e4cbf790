"""What keeps the house easy to walk through: sizes, names, overriding, tables of threads."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "torch_distinput"
LARGEST_FOLDER = 15
LARGEST_CLASS = 15
"""Public methods; the facades have more, since their names are TensorFlow's."""
FACADES = {"Strategy"}
TABLES = {"LeafKind"}
"""A class is a row of a table, and has a method for each column of it."""
EXTENSION_POINTS = {"Reader"}
"""Classes of which users write subclasses: their methods are defaults."""
HOOKS = {"_apply", "_load_from_state_dict", "readinto"}
"""What torch's modules and io's files call, and say how to extend: by super()."""
ENTRY_POINTS = {"main", "add_arguments", "run"}
"""What a shell, or the command line of ``inspect``, calls in each of several modules."""
STARTERS = {"start_thread", "new_lock", "new_rlock", "new_condition", "threading.Thread"}


@cache
def trees() -> dict[str, ast.Module]:
    """The package's files by their path in it."""
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text())
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for path, tree in trees().items():
        yield from ((path, node) for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def methods(node: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {child.name: child for child in node.body if isinstance(child, ast.FunctionDef)}


def bases(node: ast.ClassDef) -> list[str]:
    return [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]


@cache
def known() -> dict[str, ast.ClassDef]:
    return {node.name: node for _, node in classes()}


def ancestors(node: ast.ClassDef) -> Iterator[ast.ClassDef]:
    """The classes of the package from which a class inherits."""
    for name in bases(node):
        if name in known() and known()[name] is not node:
            yield known()[name]
            yield from ancestors(known()[name])


def is_concrete(method: ast.FunctionDef) -> bool:
    marks = " ".join(map(ast.unparse, method.decorator_list))
    return "abstract" not in marks and "overload" not in marks


@pytest.mark.slow
def test_a_folder_can_be_taken_in_at_a_glance() -> None:
    sizes = Counter(
        str(Path(path).parent) for path in trees() if not path.endswith("/__init__.py")
    )
    assert {} == {folder: size for folder, size in sizes.items() if size > LARGEST_FOLDER}


def test_a_public_name_has_one_meaning() -> None:
    """No two modules define the same, but for type variables."""
    found = defaultdict(set)
    for path, tree in trees().items():
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found[node.name].add(path)
            elif isinstance(node, ast.Assign) and "TypeVar" not in ast.unparse(node.value):
                names = [target.id for target in node.targets if isinstance(target, ast.Name)]
                for name in names:
                    found[name].add(path)
    shared = {
        name: sorted(paths)
        for name, paths in found.items()
        if len(paths) > 1 and not name.startswith("_") and name not in ENTRY_POINTS
    }
    assert {} == shared


def test_a_class_is_abstract_or_final() -> None:
    """No concrete method of ours is overridden, so that what is read there is what runs."""
    overridden = [
        f"{path}: {node.name}.{name} of {base.name}"
        for path, node in classes()
        for base in ancestors(node)
        if base.name not in EXTENSION_POINTS and "Protocol" not in bases(base)
        for name, method in methods(base).items()
        if name in methods(node) and name not in {"__init__", *HOOKS} and is_concrete(method)
    ]
    assert [] == overridden


def documented(node: ast.ClassDef) -> list[str]:
    """The names in the ``Attributes:`` section of a class."""
    _, _, section = (ast.get_docstring(node) or "").partition("\nAttributes:\n")
    own = re.split(r"^\S", section, maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(r"^    (\w+): ", own, re.MULTILINE)


def attributes(node: ast.ClassDef) -> set[str]:
    """What is assigned in a class or to ``self``, and its methods; inherited ones too."""
    inside = [child for each in (node, *ancestors(node)) for child in ast.walk(each)]
    stored = [child for child in inside if isinstance(getattr(child, "ctx", None), ast.Store)]
    names = {child.id for child in stored if isinstance(child, ast.Name)}
    names |= {child.attr for child in stored if isinstance(child, ast.Attribute)}
    return names | {child.name for child in inside if isinstance(child, ast.FunctionDef)}


def test_docstrings_name_attributes_that_are_there() -> None:
    """Else one was renamed, and what is said of it was left behind."""
    lost = [
        f"{path}: {node.name}.{name}"
        for path, node in classes()
        for name in documented(node)
        if name not in attributes(node)
    ]
    assert [] == lost


def test_a_class_has_one_subject() -> None:
    sizes = {
        node.name: len([name for name in methods(node) if not name.startswith("_")])
        for _, node in classes()
        if node.name not in FACADES and not TABLES & {node.name, *bases(node)}
    }
    assert {} == {name: size for name, size in sizes.items() if size > LARGEST_CLASS}


def circles(modules: Mapping[str, ast.AST]) -> set[str]:
    """The modules that see themselves through others, by any import, also for annotations."""
    sees = {
        name: {full if full in modules else full.rpartition(".")[0] for full in imported(tree)}
        & modules.keys() - {name}
        for name, tree in modules.items()
    }
    for middle in modules:  # Warshall: whoever sees the one in the middle sees what that sees
        for name in modules:
            if middle in sees[name]:
                sees[name] |= sees[middle]
    return {name for name, seen in sees.items() if name in seen}


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_module_sees_itself_through_others() -> None:
    names = {path: path.removesuffix(".py").removesuffix("/__init__") for path in trees()}
    modules = {
        ".".join(("torch_distinput", *Path(names[path]).parts)): tree
        for path, tree in trees().items()
        if path != "__init__.py"  # the front door, which only scripts import as a whole
    }
    assert set() == circles(modules)


def test_a_circle_is_found() -> None:
    sources = {"t.a": "from t import b", "t.b": "from t.c import f", "t.c": "import t.a"}
    modules = {name: ast.parse(text) for name, text in sources.items()}
    assert {"t.a", "t.b", "t.c"} == circles(modules)
    assert set() == circles({**modules, "t.c": ast.parse("import t")})


def starts_with_a_table(tree: ast.Module) -> bool:
    """Whether the docstring has a row of headings, for threads or for moments."""
    lines = (ast.get_docstring(tree) or "").splitlines()
    return any(line.startswith(("    thread  ", "    when  ")) for line in lines)


def shares_memory(tree: ast.Module) -> bool:
    """Whether a file makes threads or locks."""
    names = (node for node in ast.walk(tree) if isinstance(node, (ast.Name, ast.Attribute)))
    return bool(STARTERS & set(map(ast.unparse, names)))


def files_with_threads() -> list[str]:
    """Their paths. Only files with such a word are parsed: each process that runs tests asks."""
    words = {name.rpartition(".")[2] for name in STARTERS}
    texts = {path: path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}
    return [
        path.relative_to(PACKAGE).as_posix()
        for path, text in texts.items()
        if any(word in text for word in words) and shares_memory(ast.parse(text))
    ]


@pytest.mark.parametrize("path", files_with_threads())
def test_a_file_with_threads_says_which_of_them_writes_what(path: str) -> None:
    assert starts_with_a_table(trees()[path])


def test_every_module_of_plan_is_proved_by_a_file_of_its_own() -> None:
    """By integers alone: what needs threads or tensors is tested where they are."""
    modules = {Path(path).stem for path in trees() if path.startswith("plan/")} - {"__init__"}
    tested = {path.stem.removeprefix("test_") for path in (ROOT / "tests/plan").glob("test_*.py")}
    assert set() == modules - tested
    for path in (ROOT / "tests/plan").glob("*.py"):
        imported = {
            alias.name if isinstance(node, ast.Import) else str(node.module)
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for alias in node.names
        }
        rooms = {name.partition(".")[0] for name in imported}
        assert not rooms & {"threading", "torch", "multiprocessing"}, path


def test_an_assert_does_nothing_that_is_needed() -> None:
    """With ``python -O`` it is not there."""
    acting = [
        f"{path}:{node.lineno}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert)
        for call in ast.walk(node.test)
        if isinstance(call, ast.Call)
        and ast.unparse(call.func).rpartition(".")[2] in {"next", "pop", "popleft", "take", "get"}
    ]
    assert [] == acting
