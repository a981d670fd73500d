"""The documentation as a site: complete, and without anything from other machines."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import inline_attention
from inline_attention import dense, layers, training

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


class ParsedPage(HTMLParser):
    """What a page loads, what it links to, and its anchors."""

    def __init__(self, page: Path):
        super().__init__()
        self.loads, self.links, self.anchors, self.tables, self.formulas = [], [], {""}, 0, 0
        self.feed(page.read_text())

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.anchors.add(found.get("id") or "")
        self.tables += tag == "table"
        self.formulas += tag == "math"
        if tag == "a":
            self.links.append(found.get("href") or "")
        else:
            self.loads += [found[name] for name in ("src", "href", "data", "poster") if found.get(name)]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, ParsedPage]:
    # 404.html is for the root of a server, so its links are absolute
    return {page: ParsedPage(page) for page in site.rglob("*.html") if page.name != "404.html"}


def html_of(site: Path, page: str) -> Path:
    return (site / page).with_suffix(".html")


def test_every_page_of_the_repository_is_in_the_navigation(site, pages):
    assert {html_of(site, page) for page in PAGES} <= pages.keys()
    navigation = pages[site / "index.html"].links
    assert {page.removesuffix(".md") + ".html" for page in PAGES} <= set(navigation)
    assert not list(site.glob("*.py"))


def test_nothing_is_fetched_from_other_machines(site, pages):
    for page, parsed in pages.items():
        assert not [link for link in parsed.loads if urlsplit(link).netloc], page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", sheet.read_text()), sheet.name


def test_links_work(pages):
    for page, parsed in pages.items():
        for link in [*parsed.loads, *parsed.links]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{page.name} links to {link}"
            if target in pages:
                assert unquote(parts.fragment) in pages[target].anchors, f"{page.name} links to {link}"


@pytest.mark.parametrize("name", [page for page in PAGES if not page.startswith("api/")])
def test_the_site_has_all_tables_code_blocks_and_formulas_of_a_page(site, pages, name):
    text = (DOCS / name).read_text()
    page = html_of(site, name)
    assert pages[page].tables == len(re.findall(r"^\|[ |:-]+\|$", text, flags=re.MULTILINE))
    built = page.read_text()
    assert "```" not in built
    blocks = re.findall(r'<div class="(?:language-\w+ )?highlight">', built)
    assert len(blocks) == len(re.findall(r"^```", text, flags=re.MULTILINE)) // 2
    prose = re.sub(r"^```.*?^```|`[^`\n]+`", "", text, flags=re.MULTILINE | re.DOTALL)
    formulas = re.findall(r"\$\$.+?\$\$|\$[^$\s][^$]*\$", prose, flags=re.DOTALL)
    assert pages[page].formulas == len(formulas)


@pytest.mark.parametrize(
    ("name", "module"), [("package", inline_attention), ("layers", layers), ("dense", dense), ("training", training)]
)
def test_the_api_reference_has_every_public_function_and_class(site, pages, name, module):
    expected = {f"{module.__name__}.{public}" for public in module.__all__ if callable(getattr(module, public))}
    assert expected
    assert expected <= pages[site / "api" / f"{name}.html"].anchors


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("api/")])
def test_every_module_of_the_api_reference_is_rendered(site, pages, page):
    modules = re.findall(r"^::: ([\w.]+)$", (DOCS / page).read_text(), flags=re.MULTILINE)
    assert modules
    assert set(modules) <= pages[html_of(site, page)].anchors
