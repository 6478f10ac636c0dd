"""What is released: a wheel has the compiled decoder or says that it has not."""

from __future__ import annotations

import os
import re
import runpy
import tarfile
import zipfile
from email.parser import Parser
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from aiokafka_lite._implementation import LIBRARY
from tests.support.distributions import build, built, copied_checkout
from tests.support.extensions import compiled_in_place

# Each compiles all extensions: a minute, if nothing else runs.
pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parent.parent
# As if the compiler were there and failed.
NO_COMPILER = {"CC": "false", "CXX": "false"}
# Compiles all but one file, to nothing.
ONE_FAILS = """\
#!/bin/sh
case "$*" in *gate.c*) exit 1;; esac
while [ "$1" != -o ]; do shift; done
touch "$2"
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what releases are built of, without what was built of it."""
    return copied_checkout(tmp_path / "checkout")


def test_a_source_distribution_has_all_of_the_package_and_no_test_or_demo(checkout: Path) -> None:
    # What MANIFEST.in and the packages bring; extensions would only add to it.
    with tarfile.open(built(checkout, "sdist", AIOKAFKA_LITE_EXTENSIONS="none")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for path in (ROOT / "aiokafka_lite").rglob("*.py*"):
        if path.suffix in (".py", ".pyi", ".pyx", ".pxd"):
            assert str(path.relative_to(ROOT)) in names
    assert {"CHANGELOG.md", "LICENSE", "README.md", "setup.py"} <= names
    assert not {name for name in names if name.startswith(("tests", "demos"))}


def test_the_wheel_for_every_platform_says_so_and_links_to_what_is_elsewhere(
    checkout: Path,
) -> None:
    wheel = built(checkout, "bdist_wheel", AIOKAFKA_LITE_EXTENSIONS="none")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith((".so", ".pyd"))]
        assert not [name for name in archive.namelist() if name.startswith("demos")]
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        fields = Parser().parsestr(archive.read(metadata).decode())
    links = re.findall(r"\]\(([^)]*)\)", str(fields.get_payload()))
    assert len(links) > 10
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    source = dict(url.split(", ") for url in fields.get_all("Project-URL") or ())["Source"]
    at_version = re.compile(rf"{source}/(blob|raw)/v{fields['Version']}/(.*)")
    here = {found[2]: found[1] for link in links if (found := at_version.fullmatch(link))}
    assert here["docs/design.md"] == "blob"
    assert here["docs/assets/page.png"] == here["docs/assets/lag.svg"] == "raw"
    assert [name for name in here if not (ROOT / name.partition("#")[0]).exists()] == []


def test_a_choice_that_there_is_not_is_refused(checkout: Path) -> None:
    done = build(checkout, "bdist_wheel", AIOKAFKA_LITE_EXTENSIONS="maybe")
    assert done.returncode != 0
    assert "'maybe'" in done.stderr
    assert "required, optional, none" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["false", "/nowhere/cc"])
def test_a_checkout_makes_no_wheel_where_compiling_fails(checkout: Path, compiler: str) -> None:
    done = build(checkout, "bdist_wheel", CC=compiler, CXX=compiler)
    assert done.returncode != 0
    assert "_compiled cannot be compiled" in done.stderr
    assert "AIOKAFKA_LITE_EXTENSIONS=optional" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (checkout / "dist").exists()


@pytest.mark.slow
def test_a_source_distribution_can_be_installed_where_compiling_fails(checkout: Path) -> None:
    with tarfile.open(built(checkout, "sdist")) as archive:
        archive.extractall(checkout.parent, filter="data")
    (unpacked,) = checkout.parent.glob("aiokafka_lite-*")
    wheel = built(unpacked, "bdist_wheel", **NO_COMPILER)
    with zipfile.ZipFile(wheel) as archive:
        assert "aiokafka_lite/records/_decode_py.py" in archive.namelist()
        assert not [name for name in archive.namelist() if name.endswith(".so")]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["bdist_wheel", "build_ext --inplace"])
def test_where_one_extension_cannot_be_compiled_there_are_none(
    checkout: Path, command: str
) -> None:
    compiler = checkout.parent / "cc"
    compiler.write_text(ONE_FAILS)
    compiler.chmod(0o755)
    stale = checkout / f"aiokafka_lite/{LIBRARY}{EXTENSION_SUFFIXES[0]}"
    stale.touch()
    done = build(checkout, command, CC=f"{compiler}", AIOKAFKA_LITE_EXTENSIONS="optional")
    assert done.returncode == 0, done.stderr
    assert "no extension is built, because at least one failed" in done.stderr
    built_files = [*checkout.joinpath("build").rglob("*.so"), *checkout.glob("aiokafka_lite/*.so")]
    assert built_files == ([stale] if command == "bdist_wheel" else [])
    if command == "bdist_wheel":
        (wheel,) = checkout.joinpath("dist").iterdir()
        with zipfile.ZipFile(wheel) as archive:
            assert not [name for name in archive.namelist() if name.endswith(".so")]


@pytest.mark.slow
def test_extensions_carry_no_debugging_information(checkout: Path) -> None:
    wheel = built(checkout, "bdist_wheel")
    with zipfile.ZipFile(wheel) as archive:
        (library,) = (info for info in archive.infolist() if info.filename.endswith(".so"))
        code = archive.read(library)
        package = ROOT / "aiokafka_lite"
        sources = [*package.rglob("*.pyx"), *compiled_in_place(package)]
        assert library.filename == f"aiokafka_lite/{LIBRARY}{EXTENSION_SUFFIXES[0]}"
        assert all(f"PyInit_{source.stem}\0".encode() in code for source in sources)
        assert b".debug_info" not in code


def test_all_is_translated_again_only_if_a_module_was_translated_before_setup_py_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(__file__).parents[1] / "setup.py"
    monkeypatch.setenv("AIOKAFKA_LITE_EXTENSIONS", "none")
    monkeypatch.setattr("setuptools.setup", lambda **_: None)
    setup = runpy.run_path(str(source))
    monkeypatch.chdir(tmp_path)
    changed_at = source.stat().st_mtime

    def translate(module: str, at: float) -> None:
        translated = Path("build/cython", module).with_suffix(".c")
        translated.parent.mkdir(parents=True, exist_ok=True)
        translated.touch()
        os.utime(translated, (at, at))

    assert not setup["has_old_translation"]()
    for module in (*setup["SOURCES"], *setup["IN_PLACE"], *setup["POOLED"]):
        translate(module, changed_at + 1)
    translate("aiokafka_lite/removed.py", changed_at - 1)
    assert not setup["has_old_translation"]()
    translate(setup["POOLED"][0], changed_at - 1)
    assert setup["has_old_translation"]()
