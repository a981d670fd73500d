"""The documents are true: their snippets run, the tests they cite exist, their links work, their figures are stored ones."""

import ast
import contextlib
import io
import json
import re
from pathlib import Path

import pytest

from inline_attention.models.published_models import REPORTED

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LONGEST_README = 170
WIDEST_CODE = 120
AMERICAN = re.compile(
    r"\b(?:colors?|gray|behaviors?|neighbors?|normaliz\w+|\w*labeled|favor\w*|recogniz\w+|summariz\w+|initializ\w+"
    r"|parallelized|analyz(?:ed|ing)|artifacts?|modeling)\b"
)


def blocks(page: Path) -> list[tuple[str, str]]:
    return re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def table_rows(page: str, name: str) -> list[list[str]]:
    """The cells of the table between the markers `<!-- name -->` and `<!-- /name -->`, without its head."""
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", (ROOT / page).read_text(), re.DOTALL)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines()[2:]]


def stored(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text())


def test_the_readme_is_short_and_has_snippets():
    readme = ROOT / "README.md"
    assert len(readme.read_text().splitlines()) <= LONGEST_README
    assert sum(language == "python" for language, _ in blocks(readme)) >= 3


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_fits_the_column_of_the_site(page):
    """docs/site.css makes it wide enough for 120 characters. Output after a prompt is as a program prints it, and wraps."""
    code = [text for language, text in blocks(page) if language in ("bash", "console", "py", "python", "sh")]
    lines = [line for text in code if not text.startswith("$ ") for line in text.splitlines()]
    assert max(map(len, lines), default=0) <= WIDEST_CODE, max(lines, key=len)


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
    assert len(sections) == 7
    assert all("`tests/" in section for section in sections)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_work(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)|src=\"([^\"]+)\"", page.read_text()):
        path = next(filter(None, target))
        assert path.startswith("http") or (page.parent / path).exists(), f"{page.name} links to {path}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_prose_has_british_spelling(page):
    """Names of torch, timm and the commands (optimizer, linearize) keep theirs."""
    prose = re.sub(r"^```.*?^```|`[^`\n]+`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert AMERICAN.findall(prose) == []


def test_the_readmes_table_is_what_was_measured():
    """Every figure of it is in benchmarks/results/."""
    deit = [r for r in stored("models")["records"] if r["model"] == "inline_deit_tiny" and r["mode"] == "forward"]
    times = {
        (r["size"], r["batch"]): [f"{1e3 * r['forward'][name]['best']:.1f}" for name in ("model", "rival")]
        for r in deit
        if not r["compiled"]
    }
    cifar = stored("cifar10")["runs"]
    pets = stored("dense_runs")["pets"]["runs"]
    linearize = stored("linearize")["record"]

    def last(runs, metric):
        return [f"{run['evaluations'][-1][metric]:.2f}" for run in runs]

    expected = [
        times[224, 1],
        times[224, 16],
        times[896, 1],
        times[1792, 1],
        last((cifar["inline"], cifar["softmax"]), "top1"),
        [fashion_mnist(mixer, local=True) for mixer in ("inline", "softmax")],
        [fashion_mnist(mixer, local=False) for mixer in ("inline", "softmax")],
        last((pets["semantic_fpn inline"], pets["semantic_fpn softmax"]), "miou"),
        last((pets["upernet inline"], pets["upernet softmax"]), "miou"),
        [f"{one['top1']:.2f}" for one in (linearize["phases"][-1], linearize["teacher"])],
    ]
    assert [row[1:] for row in table_rows("README.md", "measured")] == expected


def fashion_mnist(mixer: str, *, local: bool) -> str:
    """Mean top-1 over seeds of a DeiT, from the stored records of `inline reproduce`."""
    same = {"family": "deit", "kernel": None, "finer": 1, "width": 1, "longer": 1, "equal": False, "rate": 1}
    wanted = {**same, "mixer": mixer, "local": local}
    found = [
        record["metrics"]["top1"]
        for record in stored("reproduce")["records"]
        if record["kind"] == "train"
        and wanted.items() <= record["contender"].items()  # the word of 0.1.0, which wrote the file
    ]
    assert len(found) == 3
    return f"{sum(found) / 3:.1f}"


def test_the_table_of_models_has_the_reported_accuracies():
    reported = [[f"`{name}`", f"{one.top1} %" if one.top1 else "-"] for name, one in REPORTED.items()]
    assert [[row[0], row[2]] for row in table_rows("docs/models.md", "models")] == reported
