"""Documents say what is true: their snippets run, the tests they cite exist, their links lead somewhere."""

import ast
import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def blocks(page: Path) -> list[tuple[str, str]]:
    return re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def test_the_readme_has_snippets():
    assert sum(language == "python" for language, _ in blocks(ROOT / "README.md")) >= 4


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_snippets_run_and_print_what_the_page_says(page):
    """Python blocks of a page run in order; a text block after one is what it prints."""
    names: dict[str, object] = {}
    found = blocks(page)
    for (language, code), (next_language, text) in zip(found, [*found, ("", "")][1:], strict=True):
        if language != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, f"{page.name}", "exec"), names)
        if next_language == "text":
            assert printed.getvalue() == text


def defined_tests(file: Path) -> set[str]:
    names = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{item.name}" for item in node.body if isinstance(item, ast.FunctionDef)}
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_cited_tests_exist(page):
    for file, name in re.findall(r"`(tests/[\w/]+\.py)::([\w:]+)`", page.read_text()):
        assert name in defined_tests(ROOT / file), f"{page.name} cites {file}::{name}"


def test_every_section_of_the_derivation_cites_a_test():
    sections = (ROOT / "docs" / "math.md").read_text().split("\n## ")[1:]
    assert len(sections) == 6
    assert all("`tests/" in section for section in sections)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)|src=\"([^\"]+)\"", page.read_text()):
        path = next(filter(None, target))
        assert path.startswith("http") or (page.parent / path).exists(), f"{page.name} links to {path}"
