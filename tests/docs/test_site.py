"""The site: it is built without a warning, is whole, and loads nothing from elsewhere.

Links lead somewhere on the site, and where the files lie, too.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest

from aiokafka_lite import AIOKafkaConsumer
from tests.docs.reference import EVERYTHING, MODULES, REFERENCE, Documented
from tests.support.for_each import for_each

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "aiokafka_lite"
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("docs/reference/*.md"),
        *ROOT.glob(".github/*.md"),
    ]
)
LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]+))?\)")
LOADED = re.compile(
    r"""<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)="([^"]*)"|url\(['"]?([^)]*)\)|@import"""
)


def build(configuration: Path, target: Path) -> subprocess.CompletedProcess[str]:
    importlib.import_module("mkdocs")  # of the extra docs: only `make test-fast` runs without it
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-f", configuration, "-d", target],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once."""
    target = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", target)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return target


def homes(each: Documented) -> Iterator[str]:
    """The addresses by which the reference may have something public."""
    yield f"{each.module}.{each.anchor}"
    if each.module == "aiokafka_lite":  # it hands on what other modules have
        for module in MODULES:
            yield f"{module}.{each.anchor}"
    cls, _, method = each.anchor.partition(".")
    if method and each.function is not None and each.function.__doc__ is None:
        # What it is stands at the method that it overrides.
        for parent in getattr(importlib.import_module(each.module), cls).__mro__[1:]:
            yield from (f"{module}.{parent.__name__}.{method}" for module in MODULES)


def test_the_reference_has_every_public_name_and_every_argument(site: Path) -> None:
    pages = {path.name: path.read_text("utf-8") for path in site.glob("reference/*.html")}
    assert len(pages) == len(list(REFERENCE.glob("*.md")))
    anchors = set(re.findall(r'\bid="([^"]+)"', "".join(pages.values())))
    missing = [
        f"{each.module}: {each.anchor}" for each in EVERYTHING if anchors.isdisjoint(homes(each))
    ]
    assert missing == []
    arguments = [*inspect.signature(AIOKafkaConsumer).parameters]
    told = re.findall(r"<li[^>]*>\s*<b><code>(?:\*<wbr>|\*)?(\w+)</code>", pages["consumer.html"])
    assert [name for name in arguments if name not in told] == []
    for name, page in pages.items():
        text = unescape(re.sub(r"<(style|script).*?</\1>|<[^>]+>", "", page, flags=re.DOTALL))
        assert "::" not in text, f"{name}: code that is announced as in plain text"
        assert str(ROOT) not in text, f"{name}: a path of this machine"


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loaded = {
        f"{path.relative_to(site)}: {found[0]}"
        for path in [*site.rglob("*.html"), *site.glob("assets/*.css")]
        for found in LOADED.finditer(path.read_text("utf-8"))
        if re.match(r"(?!data:)[^/]*//", found[1] or found[2] or "//")
    }
    assert loaded == set()


def test_pages_from_outside_of_docs_are_there_with_links_that_fit(site: Path) -> None:
    start = (site / "index.html").read_text("utf-8")
    assert 'href="services.html#an-event-loop-that-is-blocked"' in start
    assert 'src="assets/cpu.svg"' in start
    assert re.search(r'href="https://github\.com/[\w/-]+/blob/main/LICENSE"', start)
    assert 'href="examples/script.html"' in (site / "services.html").read_text("utf-8")
    assert "SIGTERM" in (site / "examples/script.html").read_text("utf-8")
    assert "Keep a Changelog" in (site / "changelog.html").read_text("utf-8")


def test_every_module_is_listed_with_the_first_line_of_its_docstring(site: Path) -> None:
    page = (site / "modules.html").read_text("utf-8")
    rows = re.findall(r"<td><code>([^<]+)</code></td>\s*<td>(.*?)</td>", page, re.DOTALL)
    files = [path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".pyx")]
    assert sorted(name for name, _ in rows) == sorted(path.name for path in files)
    assert [name for name, line in rows if not line.strip()] == []


def test_links_that_lead_nowhere_fail_the_build(tmp_path: Path) -> None:
    dead = ["nowhere.md", "#nowhere", "/absolute.md", "index.md#not-there"]
    (tmp_path / "docs").mkdir()
    page = "".join(f"\n[a link]({link})\n" for link in dead)
    (tmp_path / "docs" / "index.md").write_text(f"# A page\n{page}")
    configuration = tmp_path / "mkdocs.yml"
    configuration.write_text(f"INHERIT: {ROOT}/mkdocs.yml\nplugins: []\nhooks: []\nnav: null\n")
    done = build(configuration, tmp_path / "site")
    assert done.returncode == 1
    # Each of them would fail the build alone: one warning is enough in strict mode.
    assert done.stderr.count("WARNING") == len(dead)
    assert [link for link in dead if link.removeprefix("index.md") not in done.stderr] == []


def slugs(page: Path) -> set[str]:
    """The anchors that GitHub gives a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.M)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


@for_each(PAGES)
def test_links_lead_somewhere_where_the_file_lies_too(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.M)
    dead = []
    for path, anchor in LINK.findall(text):
        target = (page.parent / path).resolve() if path else page
        if not target.is_file() or (anchor and anchor not in slugs(target)):
            dead.append(f"{path}#{anchor}" if anchor else path)
    assert dead == []
