"""`make release`: what it changes, tried on a temporary repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = (
    "pyproject.toml",
    "aiokafka_lite/_version.py",
    "README.md",
    "CHANGELOG.md",
    "docs/install.md",
)
SCRIPT = ROOT / ".ci" / "release.py"
NEW = "7.1.0"
# Git names the repository in the environment of its hooks, and a user may have every commit signed.
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with the files that a release changes, as they are here."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    changelog = tmp_path / "CHANGELOG.md"
    text = changelog.read_text()
    changelog.write_text(re.sub(r"(?m)^## \S+ \(unreleased\)", f"## {NEW} (unreleased)", text))
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "config", "user.name", "A Tester")
    git(tmp_path, "config", "user.email", "tester@example.org")
    commit(tmp_path)
    return tmp_path


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments],
        cwd=root, env=ENVIRONMENT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "-q", "-m", "files")


def release(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments, "--root", root],
        env=ENVIRONMENT, capture_output=True, text=True,
    )  # fmt: skip


def with_unreleased(root: Path, lines: str, prepared: str = "") -> None:
    """Write a changelog with these unreleased lines, and a section for the version."""
    root.joinpath("CHANGELOG.md").write_text(
        f"# Changelog\n\n## [Unreleased]\n\nEvery\nchange.\n\n{lines}{prepared}## 0.0.1\n\nOld.\n"
    )
    commit(root)


def test_a_release_changes_every_place_of_the_version_and_tags_the_commit(clone: Path) -> None:
    done = release(clone, NEW, "--execute")
    assert (done.returncode, done.stderr) == (0, "")
    assert f'version = "{NEW}"' in clone.joinpath("pyproject.toml").read_text()
    assert f'__version__ = "{NEW}"' in clone.joinpath("aiokafka_lite/_version.py").read_text()
    assert "This is version 7.1," in clone.joinpath("README.md").read_text()
    assert git(clone, "describe") == f"v{NEW}"
    assert git(clone, "log", "-1", "--format=%s") == f"release: {NEW}"
    assert git(clone, "status", "--porcelain") == ""


def test_unless_told_to_execute_nothing_is_changed(clone: Path) -> None:
    done = release(clone, NEW)
    assert done.returncode == 0
    assert f'+__version__ = "{NEW}"' in done.stdout
    assert git(clone, "status", "--porcelain") == git(clone, "tag") == ""


def test_unreleased_lines_get_the_version_and_its_day(clone: Path) -> None:
    with_unreleased(clone, "### Fixed\n- A fault.\n\n")
    assert release(clone, NEW, "--execute").returncode == 0
    text = re.sub(r"\d{4}-\d\d-\d\d", "DAY", clone.joinpath("CHANGELOG.md").read_text())
    assert text == (
        "# Changelog\n\n## [Unreleased]\n\nEvery\nchange.\n\n"
        f"## {NEW} (DAY)\n\n### Fixed\n- A fault.\n\n## 0.0.1\n\nOld.\n"
    )


def test_a_section_prepared_for_the_version_comes_before_the_unreleased_lines(clone: Path) -> None:
    prepared = f"## {NEW} (unreleased)\n\nBig.\n\n### A\n- One.\n\n"
    with_unreleased(clone, "### Fixed\n- A fault.\n\n", prepared)
    assert release(clone, NEW, "--execute").returncode == 0
    text = clone.joinpath("CHANGELOG.md").read_text()
    assert re.findall(r"^(?:#|-|[A-Z]).*", text.partition("change.")[2], re.M)[1:] == [
        "Big.", "### A", "- One.", "### Fixed", "- A fault.", "## 0.0.1", "Old.",
    ]  # fmt: skip
    assert text.count(NEW) == 1
    assert "(unreleased)" not in text


def test_another_version_than_the_prepared_one_is_refused(clone: Path) -> None:
    with_unreleased(clone, "### Fixed\n- A fault.\n\n", "## 7.0.0 (unreleased)\n\nBig.\n\n")
    done = release(clone, NEW, "--execute")
    assert done.returncode == 1
    assert "a section prepared for 7.0.0: release 7.0.0, or change" in done.stderr
    assert git(clone, "status", "--porcelain") == git(clone, "tag") == ""


def test_every_section_of_the_changelog_has_a_day_or_is_unreleased() -> None:
    headings = re.findall(r"^## (.+)", ROOT.joinpath("CHANGELOG.md").read_text(), re.M)
    for heading in headings[1:]:
        assert re.fullmatch(r"\d+\.\d+\.\d+ \((unreleased|\d{4}-\d\d-\d\d)\)", heading)


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("0.0.1", "not above the current version"),
        ("1.0", "not a version"),
        ("v1.0.0", "not a version"),
    ],
)
def test_a_version_that_cannot_be_next_is_refused(clone: Path, version: str, reason: str) -> None:
    done = release(clone, version, "--execute")
    assert done.returncode == 1
    assert reason in done.stderr


def test_a_checkout_that_is_not_ready_is_refused_and_kept(clone: Path) -> None:
    git(clone, "tag", f"v{NEW}")
    assert "a tag v7.1.0 already" in release(clone, NEW, "--execute").stderr
    git(clone, "switch", "-q", "-c", "other")
    assert "this is other" in release(clone, NEW, "--execute").stderr
    clone.joinpath("new").write_text("")
    assert "uncommitted changes" in release(clone, NEW, "--execute").stderr
    assert git(clone, "log", "--oneline").count("\n") == 0


@pytest.mark.parametrize("failing", ["hook", "signature"])
def test_a_release_that_git_refuses_changes_nothing(clone: Path, failing: str) -> None:
    if failing == "hook":
        hook = clone / ".git" / "hooks" / "pre-commit"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text("#!/bin/sh\necho a wrong word\nexit 1\n")
        hook.chmod(0o755)
    else:
        git(clone, "config", "tag.gpgSign", "true")
        git(clone, "config", "gpg.program", "false")
    done = release(clone, NEW, "--execute")
    assert done.returncode == 1
    assert done.stderr.startswith("release: git ")
    assert done.stderr.endswith("\nnothing is changed\n")
    assert git(clone, "status", "--porcelain") == git(clone, "tag") == ""
    assert git(clone, "log", "--oneline").count("\n") == 0


@pytest.mark.parametrize("lines", ["", "### Added\n\n### Fixed\n\n"])
def test_without_unreleased_lines_there_is_no_release(clone: Path, lines: str) -> None:
    with_unreleased(clone, lines)
    assert "no unreleased lines" in release(clone, NEW, "--execute").stderr
