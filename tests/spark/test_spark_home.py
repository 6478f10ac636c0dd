from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from aiokafka_lite.spark.spark_home import use_installed_pyspark

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")

# Set where Spark is another than the installed PySpark's, or runs on YARN.
OF_OTHERS = ("SPARK_HOME", "HADOOP_CONF_DIR", "YARN_CONF_DIR")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder that looks like an installed PySpark."""
    package = tmp_path / "site-packages" / "pyspark"
    for folder in ("bin", "jars", "conf", "sql", "python/lib"):
        (package / folder).mkdir(parents=True)
    for file in ("__init__.py", "sql/__init__.py", "bin/spark-submit"):
        (package / file).touch()
    for archive in ("pyspark.zip", "py4j-src.zip"):
        (package / "python" / "lib" / archive).write_bytes(b"PK")
    return package


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "user")}


def test_home_is_pysparks_but_for_the_archive(package: Path, environment: dict[str, str]) -> None:
    home = use_installed_pyspark(environment, package)
    assert home is not None
    assert environment["SPARK_HOME"] == str(home)
    assert sorted(each.name for each in home.iterdir()) == ["bin", "conf", "jars", "python"]
    assert (home / "bin" / "spark-submit").is_file()
    assert (home / "python" / "lib" / "py4j-src.zip").read_bytes() == b"PK"
    archive = home / "python" / "lib" / "pyspark.zip"
    assert (archive / "pyspark").resolve() == package


def test_home_is_made_once_and_anew_for_another_pyspark(
    package: Path, environment: dict[str, str]
) -> None:
    first = use_installed_pyspark(dict(environment), package)
    assert use_installed_pyspark(dict(environment), package) == first
    (package / "python" / "lib" / "py4j-src.zip").rename(package / "python" / "lib" / "py4j-2.zip")
    second = use_installed_pyspark(dict(environment), package)
    assert second is not None
    assert second != first
    assert (second / "python" / "lib" / "py4j-2.zip").is_file()


@pytest.mark.parametrize("name", OF_OTHERS)
def test_other_sparks_and_yarn_are_left_alone(
    package: Path, environment: dict[str, str], name: str
) -> None:
    environment[name] = "/elsewhere"
    before = dict(environment)
    assert use_installed_pyspark(environment, package) is None
    assert environment == before


@pytest.mark.parametrize("missing", ["jars", "python/lib/pyspark.zip"])
def test_pyspark_without_a_spark_or_an_archive_is_left_alone(
    package: Path, environment: dict[str, str], missing: str
) -> None:
    path = package / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert use_installed_pyspark(environment, package) is None
    assert "SPARK_HOME" not in environment


def test_cache_that_cannot_be_written_leaves_things_as_they_are(
    package: Path, environment: dict[str, str]
) -> None:
    Path(environment["HOME"]).touch()
    assert use_installed_pyspark(environment, package) is None
    assert "SPARK_HOME" not in environment


@pytest.mark.skipif(
    any(name in os.environ for name in OF_OTHERS),
    reason="sessions have the user's home here",
)
def test_workers_of_a_session_import_the_installed_package(spark: SparkSession) -> None:
    def imported_from(_: int) -> str:
        import pyspark

        return pyspark.__file__

    (path,) = spark.sparkContext.parallelize([0], 1).map(imported_from).collect()
    assert "pyspark.zip" in path
    assert os.path.realpath(path) == os.path.realpath(pyspark.__file__)
