"""Prepares a release: the version, the changelog's section, a commit and its tag.

    make release VERSION=0.2.0                    prints what would change
    make release VERSION=0.2.0 ARGS=--execute     commits and tags it; nothing is pushed

The tag starts .github/workflows/release.yml, once it is pushed.
"""

from __future__ import annotations

import argparse
import datetime
import difflib
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

BRANCH: Final = "main"
UNPUBLISHED: Final = "not on PyPI yet"
PAGES: Final = ("README.md", "docs/install.md")
_UNRELEASED: Final = re.compile(
    r"(?P<before>.*^## \[Unreleased\]\n\n(?:[^\n#-][^\n]*\n)+)(?P<lines>.*?)(?=^## )(?P<after>.*)",
    re.M | re.S,
)
_PREPARED: Final = re.compile(r"^## (\S+) \(unreleased\)\n(.*?)(?=^## |\Z)", re.M | re.S)


class ReleaseError(Exception):
    """The release cannot be made; the message gives the reason."""


def git(root: Path, *arguments: str) -> str:
    """Run Git and return its output."""
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)  # noqa: S603
    if done.returncode:
        raise ReleaseError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version such as 0.2.0."""
    if not re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}", version):
        raise ReleaseError(f"{version!r} is not a version such as 0.2.0")
    return tuple(map(int, version.split(".")))


def replaced(text: str, old: str, new: str, name: str) -> str:
    """Return a text with one occurrence of `old` replaced."""
    if text.count(old) != 1:
        raise ReleaseError(f"{name} has {old!r} {text.count(old)} times instead of once")
    return text.replace(old, new)


def changelog(text: str, version: str, day: str) -> str:
    """Move the unreleased lines into the version's section.

    A section that was prepared, "## 0.2.0 (unreleased)", keeps its text, and the lines follow it.
    """
    found = _UNRELEASED.fullmatch(text)
    if found is None:
        raise ReleaseError("CHANGELOG.md has no section [Unreleased] with an introduction")
    lines, after = found["lines"].strip("\n"), found["after"]
    prepared = _PREPARED.match(after)
    if prepared and prepared[1] != version:
        raise ReleaseError(
            f"CHANGELOG.md has a section prepared for {prepared[1]}: release {prepared[1]}, or "
            f"change the section's heading to {version} (unreleased)"
        )
    if prepared:
        lines = f"{prepared[2].strip()}\n\n{lines}".strip("\n")
        after = after[prepared.end() :]
    if not re.search(r"^[^#\n]", lines, re.M):
        raise ReleaseError("CHANGELOG.md has no unreleased lines")
    text = f"{found['before']}\n## {version} ({day})\n\n{lines}\n\n{after}"
    return f"{text.rstrip()}\n"


def changes(root: Path, version: str, day: str) -> dict[str, str]:
    """Return the files that change, with their new texts."""
    texts = {
        name: root.joinpath(name).read_text("utf-8")
        for name in ("pyproject.toml", "aiokafka_lite/_version.py", "README.md", "CHANGELOG.md")
    }
    found = re.search(r'^__version__ = "(.+)"$', texts["aiokafka_lite/_version.py"], re.M)
    if found is None:
        raise ReleaseError("aiokafka_lite/_version.py has no version")
    old = found[1]
    if numbers(version) <= numbers(old):
        raise ReleaseError(f"{version} is not above the current version {old}")
    for name, line in {
        "pyproject.toml": '\nversion = "{}"\n',
        "aiokafka_lite/_version.py": '__version__ = "{}"\n',
    }.items():
        texts[name] = replaced(texts[name], line.format(old), line.format(version), name)
    old_minor, minor = old.rpartition(".")[0], version.rpartition(".")[0]
    texts["README.md"] = replaced(
        texts["README.md"],
        f"This is version {old_minor},",
        f"This is version {minor},",
        "README.md",
    )
    texts["CHANGELOG.md"] = changelog(texts["CHANGELOG.md"], version, day)
    return texts


def check(root: Path, version: str) -> None:
    """Raise ReleaseError unless a release can be made of this checkout."""
    if dirty := git(root, "status", "--porcelain"):
        raise ReleaseError(f"there are uncommitted changes:\n{dirty}")
    if (branch := git(root, "branch", "--show-current")) != BRANCH:
        raise ReleaseError(f"releases are made on {BRANCH}, this is {branch or 'no branch'}")
    if git(root, "tag", "--list", f"v{version}"):
        raise ReleaseError(f"there is a tag v{version} already")


def commit_and_tag(root: Path, texts: dict[str, str], version: str) -> None:
    """Write the files, commit them and tag the commit.

    Raises:
        ReleaseError: A hook or a signature failed, for example. The checkout is as it was.
    """
    before = git(root, "rev-parse", "HEAD")
    try:
        for name, text in texts.items():
            root.joinpath(name).write_text(text, "utf-8")
        git(root, "commit", "-q", "-m", f"release: {version}", "--", *texts)
        git(root, "tag", "-a", f"v{version}", "-m", f"aiokafka_lite {version}")
    except BaseException:
        git(root, "reset", "-q", "--hard", before)  # check() has found no other changes
        raise


def main(arguments: list[str] | None = None) -> int:
    """Print or make a release; returns the exit code."""
    parser = argparse.ArgumentParser(prog="make release VERSION=", description=__doc__)
    parser.add_argument("version")
    parser.add_argument("--execute", action="store_true", help="commit and tag it")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    options = parser.parse_args(arguments)
    root, version, tag = options.root, options.version, f"v{options.version}"
    try:
        texts = changes(root, version, datetime.date.today().isoformat())
        if options.execute:
            check(root, version)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    for name in PAGES:
        if UNPUBLISHED in root.joinpath(name).read_text("utf-8"):
            print(f"{name} still has {UNPUBLISHED!r}: change it before the release to PyPI")
    if not options.execute:
        for name, text in texts.items():
            old = root.joinpath(name).read_text("utf-8").splitlines()
            print(
                *difflib.unified_diff(old, text.splitlines(), name, name, lineterm="", n=1),
                sep="\n",
            )
        print(f"nothing is changed; ARGS=--execute commits this and adds the tag {tag}")
        return 0
    try:
        commit_and_tag(root, texts, version)
    except ReleaseError as error:
        print(f"release: {error}\nnothing is changed", file=sys.stderr)
        return 1
    print(f"committed and tagged {tag}. To publish it: git push --atomic origin {BRANCH} {tag}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
