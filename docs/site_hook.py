"""How the site differs from docs/: the README is its first page, files that pages link to are in it, TeX becomes MathML.

A page links to files where they lie in the repository. In the site docs/ is the root, and everything else keeps its path.
"""

import html
import os
import re
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r'(?<=\]\()[^)#\s]+|(?<=src=")[^"]+')
FORMULA = re.compile(r'<(span|div) class="arithmatex">\s*\\[(\[](.*?)\\[)\]]\s*</\1>', re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the first page, and whatever the navigation and pages lead to, one after the other."""
    files.append(File.generated(config, "index.md", content=(ROOT / "README.md").read_text()))
    listed = [name for entry in config.nav or [] for name in entry.values() if (ROOT / name).is_file()]
    pages = [file.src_uri for file in files.documentation_pages()]
    _add(listed, pages, files, config)
    for page in pages:  # which grows
        _add(_targets(page), pages, files, config)
    return files


def _add(targets: list[str], pages: list[str], files: Files, config: MkDocsConfig) -> None:
    for name in map(_in_site, targets):
        if files.get_file_from_path(name) is None:
            files.append(File(name, str(ROOT), config.site_dir, use_directory_urls=False))
            pages += [name] if name.endswith(".md") else []


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to where things are in the site; fences with nothing but their language."""
    here = page.file.src_uri

    def lead(link: re.Match[str]) -> str:
        target = _target(here, link[0])
        return os.path.relpath(_in_site(target), Path(here).parent) if target else link[0]

    return LINK.sub(lead, re.sub(r"^(```\w+) .+$", r"\1", markdown, flags=re.MULTILINE))


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Formulas that browsers show by themselves."""

    def formula(found: re.Match[str]) -> str:
        return convert(html.unescape(found[2]).strip(), display="inline" if found[1] == "span" else "block")

    return FORMULA.sub(formula, content)


def _in_site(path: str) -> str:
    """A file of the repository, as the site has it."""
    return "index.md" if path == "README.md" else path.removeprefix("docs/")


def _in_repository(page: str) -> str:
    """A page of the site, as the repository has it."""
    return "README.md" if page == "index.md" else f"docs/{page}" if (ROOT / "docs" / page).is_file() else page


def _target(page: str, link: str) -> str | None:
    """The file of the repository that a page links to, if it is one."""
    path = os.path.normpath(Path(_in_repository(page)).parent / link)
    return path if (ROOT / path).is_file() else None


def _targets(page: str) -> list[str]:
    found = LINK.findall((ROOT / _in_repository(page)).read_text())
    return [target for link in found if (target := _target(page, link))]
