"""Adds generated pages to the site, for MkDocs: README, CHANGELOG, the examples, the modules.

Links are written for where a file lies, so that they work there, too. Here they are turned, and one
that is named by its file gets the page's title.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = "https://github.com/aiokafka-lite/aiokafka-lite/blob/main/"
# Where files lie, from the root, and where their pages are on the site.
MOVED: Final = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}
_BADGES: Final = re.compile(r"^\[!\[.*\n", re.M)
_LINK: Final = re.compile(
    r"\[(?P<text>[^\]]*)\]\((?![a-z]+:|#)(?P<path>[^)#\s]+)(?P<anchor>#[^)]*)?\)"
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made of files elsewhere."""
    for name, page in MOVED.items():
        # The site loads nothing from elsewhere, so it has no badges.
        content = _BADGES.sub("", ROOT.joinpath(name).read_text("utf-8"))
        files.append(File.generated(config, page, content=content))
    for path in sorted(ROOT.glob("docs/examples/*.py")):
        page = f"examples/{path.stem}.md"
        files.append(File.generated(config, page, content=shown(path)))
    files.append(File.generated(config, "modules.md", content=modules(ROOT / "aiokafka_lite")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files into links to pages, or to the source where there is no page."""
    lies_at = next((name for name, at in MOVED.items() if at == page.file.src_uri), None)
    folder = posixpath.dirname(lies_at or f"docs/{page.file.src_uri}")
    titles = dict(titles_of(config.nav))

    def turned(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link["path"]))
        target = page_of(path)
        if target is None:
            return f"[{link['text']}]({SOURCE}{path}{link['anchor'] or ''})"
        text = titles.get(target, link["text"]) if link["text"].endswith(".md") else link["text"]
        address = posixpath.relpath(target, posixpath.dirname(page.file.src_uri) or ".")
        return f"[{text}]({address}{link['anchor'] or ''})"

    return _LINK.sub(turned, markdown)


def page_of(path: str) -> str | None:
    """Return the page that shows a file, both as paths: from the root, and on the site."""
    if path in MOVED:
        return MOVED[path]
    below = path.removeprefix("docs/")
    return None if below == path else re.sub(r"^(examples/\w+)\.py$", r"\1.md", below)


def shown(path: Path) -> str:
    """Return a page that shows a program."""
    code = path.read_text("utf-8")
    said = ast.get_docstring(ast.parse(code)) or path.name
    return f"# {path.name}\n\n{said.splitlines()[0]}\n\n```python\n{code}```\n"


def modules(package: Path) -> str:
    """Return a page with the first docstring line of every module, by folder."""
    lines = ["# Modules", "", "Each module with the first line of its docstring."]
    folder = None
    files = (path for path in package.rglob("*") if path.suffix in (".py", ".pyx"))
    for path in sorted(files, key=lambda path: (path.parent, path.name)):
        if path.parent != folder:
            folder = path.parent
            name = folder.relative_to(package.parent).as_posix()
            lines += ["", f"## {name}/", "", "| module | |", "|---|---|"]
        lines.append(f"| `{path.name}` | {first_line(path).replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def first_line(path: Path) -> str:
    """Return the first line of a module's docstring."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    found = re.search(r'^"""(.*?)(?:"""|\n)', text, re.M)  # Cython is not Python to ast
    return found[1] if found else ""


def titles_of(nav: object) -> Iterator[tuple[str, str]]:
    """Yield pages and their titles, as mkdocs.yml has them."""
    if isinstance(nav, list):
        for each in nav:
            yield from titles_of(each)
    elif isinstance(nav, dict):
        for title, inside in nav.items():
            if isinstance(inside, str):
                yield inside, title
            else:
                yield from titles_of(inside)
