"""How the site differs from docs/: files outside of docs/ that pages link to are in it, and TeX becomes MathML.

A page links to files by their place in the repository. In the site docs/ is the root, and everything else keeps its path.
"""

import html
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r'(?<=\]\()[^)#\s]+|(?<=src=")[^"]+')
FORMULA = re.compile(r'<(span|div) class="arithmatex">\s*\\[(\[](.*?)\\[)\]]\s*</\1>', re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside of docs/ that the navigation or a page links to, and those that the added pages link to."""
    listed = [name for name in _names(config.nav or []) if (ROOT / name).is_file()]
    pages = [file.src_uri for file in files.documentation_pages()]
    _add(listed, pages, files, config)
    for page in pages:  # the list grows meanwhile
        _add(_targets(page), pages, files, config)
    return files


def _names(nav: Any) -> Iterator[str]:
    """The files in a navigation with sections."""
    if isinstance(nav, str):
        yield nav
    else:
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from _names(entry)


def _add(targets: list[str], pages: list[str], files: Files, config: MkDocsConfig) -> None:
    for name in map(_in_site, targets):
        if files.get_file_from_path(name) is None:
            files.append(File(name, str(ROOT), config.site_dir, use_directory_urls=False))
            pages += [name] if name.endswith(".md") else []


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links to where files are in the site, and reduce the head of a code block to its language."""
    here = page.file.src_uri

    def in_site(link: re.Match[str]) -> str:
        target = _target(here, link[0])
        return os.path.relpath(_in_site(target), Path(here).parent) if target else link[0]

    return LINK.sub(in_site, re.sub(r"^(```\w+) .+$", r"\1", markdown, flags=re.MULTILINE))


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn formulas into MathML, which browsers render without a script."""

    def formula(found: re.Match[str]) -> str:
        return convert(html.unescape(found[2]).strip(), display="inline" if found[1] == "span" else "block")

    return FORMULA.sub(formula, content)


def _in_site(path: str) -> str:
    """The place in the site of a file of the repository."""
    return path.removeprefix("docs/")


def _in_repository(page: str) -> str:
    """The place in the repository of a page of the site."""
    return f"docs/{page}" if (ROOT / "docs" / page).is_file() else page


def _target(page: str, link: str) -> str | None:
    """The file of the repository that a page links to, or None for other links."""
    path = os.path.normpath(Path(_in_repository(page)).parent / link)
    return path if (ROOT / path).is_file() else None


def _targets(page: str) -> list[str]:
    links = LINK.findall((ROOT / _in_repository(page)).read_text())
    return [target for link in links if (target := _target(page, link))]
