"""Every block of Python code in the README and the docs runs; ``pages.py`` has the rules."""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import importlib.util
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.docs.pages import FENCED, PAGES, ROOT, Block, blocks_of, headings
from torch_distinput.testing import run_ranks


def execute(code: str, name: str, line: int, namespace: dict[str, Any]) -> str:
    """Run code whose errors name a line of a page, and return what it prints."""
    compiled = compile("\n" * (line - 1) + code, name, "exec")
    with contextlib.redirect_stdout(io.StringIO()) as stdout:
        exec(compiled, namespace)  # noqa: S102 - the code is our own
    return stdout.getvalue()


def script_on_rank(code: str, name: str, line: int, strategy) -> str:
    """Run a script on a rank; its models must be gone before the process group is."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed = execute(code, name, line, namespace)
    namespace.clear()
    gc.collect()
    return printed


def run_script(block: Block, name: str) -> None:
    alone = execute(block.code, name, block.line, {"__name__": "__main__"})
    if block.printed is not None:
        assert alone == block.printed
    if "init_distributed" in block.code:
        job = functools.partial(script_on_rank, block.code, name, block.line)
        assert run_ranks(job, 2) == [alone, ""]  # only worker 0 prints


def run_tests(file: Path) -> None:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(file.parent)  # for ranks, which import what they run
        patched.setitem(importlib.import_module("sys").modules, file.stem, module)
        spec.loader.exec_module(module)
        tests = [test for name, test in vars(module).items() if name.startswith("test_")]
        assert tests
        for test in tests:
            test()


def run_block(block: Block, name: str, folder: Path, namespace: dict[str, Any]) -> None:
    if block.is_tensorflow:
        compile(block.code, name, "exec")
        return
    if block.file_name is None:
        printed = execute(block.code, name, block.line, namespace)
        if block.printed is not None:
            assert printed == block.printed
        return
    file = folder / block.file_name
    file.write_text(block.code)
    if block.file_name.startswith("test_"):
        run_tests(file)
    else:
        run_script(block, name)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Pages show what is printed where there is no accelerator.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # for ranks
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: None)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks_of(page.read_text()):
        run_block(block, f"{page.name}", tmp_path, namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?://)([^)#]*)#?([^)]*)\)", page.read_text())
    targets = [(page.parent / path if path else page, heading) for path, heading in links]
    assert not [file for file, _ in targets if not file.exists()]
    assert not [heading for file, heading in targets if heading and heading not in headings(file)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_prose_is_wrapped(page: Path) -> None:
    """Tables cannot be, nor what code prints."""
    prose = FENCED.sub("", page.read_text())
    assert not [line for line in prose.splitlines() if len(line) > 110 and line[0] != "|"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_row_of_a_table_is_a_line(page: Path) -> None:
    """Else it is shown as text, with all its bars."""
    paragraphs = FENCED.sub("", page.read_text()).split("\n\n")
    tables = [rows.splitlines() for rows in paragraphs if rows.startswith("|")]
    cells = re.compile(r"(?<!\\)\|")
    assert not [rows for rows in tables if len({len(cells.findall(row)) for row in rows}) > 1]
    assert not [rows for rows in tables if set(rows[1]) - set("|-: ")]


def test_the_index_lists_every_page() -> None:
    index = ROOT / "docs" / "index.md"
    listed = set(re.findall(r"\]\(([^)#]*)", index.read_text()))
    folders = {index.parent, *(index.parent / name for name in ("how-to", "tutorials"))}
    pages = {page.relative_to(index.parent).as_posix() for page in PAGES if page.parent in folders}
    assert not sorted(pages - listed - {index.name}), "Add these pages to docs/index.md."


class TestTheRules:
    """A test that executes nothing would pass as well: these see that it does."""

    def test_a_block_that_fails_names_its_line(self) -> None:
        (block,) = blocks_of("# A page\n\n```python\nx = 1\nassert x == 2\n```\n")
        with pytest.raises(AssertionError) as failed:
            execute(block.code, "page.md", block.line, {})
        assert failed.traceback[-1].lineno + 1 == 5

    def test_text_after_a_block_is_what_it_prints(self) -> None:
        page = "```python\nprint(1)\n```\n\n```text\n1\n```\n"
        (first,) = blocks_of(page)
        (second,) = blocks_of(page.replace("\n\n", "\nor\n"))
        assert first.printed == "1\n"
        assert second.printed is None

    def test_a_comment_with_a_file_name_makes_a_file(self) -> None:
        page = "```python\n# train.py\nx = 1\n```\n```python\nx = 1\n# train.py\n```\n"
        assert [block.file_name for block in blocks_of(page)] == ["train.py", None]

    def test_other_languages_are_no_blocks(self) -> None:
        assert blocks_of("```bash\nmake test\n```\n```text\nx\n```\n") == []


def test_the_paths_of_the_architecture_exist() -> None:
    """Files are named from the package or from the repository, folders with a slash or without."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]*(?:\.py)?)`", page))
    assert "plan/assignment/bounds.py" in named
    tops = (ROOT / "torch_distinput", ROOT)
    found = {
        path
        for path in named
        for top in tops
        for end in ("", ".py")
        if (top / f"{path}{end}").exists()
    }
    assert set() == named - found


def defined_names(tree: ast.Module) -> Iterator[str]:
    """Classes, functions and constants, wherever they stand."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


@pytest.mark.slow
def test_the_names_of_the_architecture_exist() -> None:
    """Files without a folder, classes, constants and private functions are the package's own."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    files = list((ROOT / "torch_distinput").rglob("*.py"))
    named = set(re.findall(r"`([a-z0-9_]+\.py)`", page))
    assert {"options.py"} <= named
    assert set() == named - {file.name for file in files}
    named = {
        name
        for dotted in re.findall(r"`([A-Za-z_.]+)`", page.replace("README.md", ""))
        for name in dotted.split(".")
        if re.match(r"_[A-Za-z]|[A-Z]", name)
    }
    assert {"VotedFeed", "RebatchDataset", "_cut"} <= named
    defined = {name for file in files for name in defined_names(ast.parse(file.read_text()))}
    assert {"DataLoader"} == named - defined  # torch's
