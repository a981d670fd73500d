"""The documentation as pages: whole, and nothing in it from another machine."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[1]


class Seen(HTMLParser):
    """What a page loads, where it leads, and what can be led to in it."""

    def __init__(self, page: Path):
        super().__init__()
        self.loads, self.leads, self.anchors, self.tables, self.formulas = [], [], {""}, 0, 0
        self.feed(page.read_text())

    def handle_starttag(self, tag, attrs):
        has = dict(attrs)
        self.anchors.add(has.get("id") or "")
        self.tables += tag == "table"
        self.formulas += tag == "math"
        if tag == "a":
            self.leads.append(has.get("href") or "")
        else:
            self.loads += [has[name] for name in ("src", "href", "data", "poster") if has.get(name)]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, Seen]:
    return {page: Seen(page) for page in site.rglob("*.html") if page.name != "404.html"}  # which is for a server's root


def test_every_page_of_the_repository_is_in_it(site, pages):
    assert {site / f"{page.stem}.html" for page in ROOT.glob("docs/*.md")} | {site / "index.html"} <= pages.keys()
    navigation = pages[site / "index.html"].leads
    assert {f"{page.stem}.html" for page in ROOT.glob("docs/*.md")} <= set(navigation)
    assert not list(site.glob("*.py"))


def test_nothing_is_fetched_from_other_machines(site, pages):
    for page, seen in pages.items():
        assert not [link for link in seen.loads if urlsplit(link).netloc], page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", sheet.read_text()), sheet.name


def test_links_lead_somewhere(pages):
    for page, seen in pages.items():
        for link in [*seen.loads, *seen.leads]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{page.name} leads to {link}"
            if target in pages:
                assert unquote(parts.fragment) in pages[target].anchors, f"{page.name} leads to {link}"


@pytest.mark.parametrize("name", ["README.md", *sorted(f"docs/{page.name}" for page in ROOT.glob("docs/*.md"))])
def test_nothing_is_lost_on_the_way(site, pages, name):
    """Tables, blocks of code, and formulas, which browsers show by themselves."""
    text = (ROOT / name).read_text()
    page = site / ("index.html" if name == "README.md" else f"{Path(name).stem}.html")
    assert pages[page].tables == len(re.findall(r"^\|[ |:-]+\|$", text, flags=re.MULTILINE))
    made = page.read_text()
    assert "```" not in made
    assert made.count('<div class="highlight">') == len(re.findall(r"^```", text, flags=re.MULTILINE)) // 2
    prose = re.sub(r"^```.*?^```|`[^`\n]+`", "", text, flags=re.MULTILINE | re.DOTALL)
    formulas = re.findall(r"\$\$.+?\$\$|\$[^$\s][^$]*\$", prose, flags=re.DOTALL)
    assert pages[page].formulas == len(formulas)
