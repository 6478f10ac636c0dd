"""Small files and directories of a pipeline, on any file system of Spark."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from demos.parquet.errors import PipelineError


class Storage:
    """A directory, by way of the JVM's Hadoop file systems (not Spark Connect)."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm = spark.sparkContext._jvm
        assert jvm is not None  # noqa: S101 - there is one while the context lives
        self._read_all = jvm.org.apache.commons.io.IOUtils.toString
        jsc = spark.sparkContext._jsc
        assert jsc is not None  # noqa: S101 - as above
        self._path = jvm.org.apache.hadoop.fs.Path
        with _errors_at(root):
            root_path = self._path(root)
            self._file_system = root_path.getFileSystem(jsc.hadoopConfiguration())
        self.root: Final = str(root_path.makeQualified(
            self._file_system.getUri(), self._file_system.getWorkingDirectory()
        ).toString())  # fmt: skip

    def path(self, name: str) -> str:
        """Return the full path of a file or directory, given relative to the root."""
        return f"{self.root}/{name}"

    def names(self, directory: str) -> list[str]:
        """List a directory. A missing one is empty."""
        return [path.rpartition("/")[2] for path in self.glob(f"{directory}/*")]

    def glob(self, pattern: str) -> list[str]:
        """Return the full paths that match a pattern, in order."""
        with _errors_at(self.root):
            statuses = self._file_system.globStatus(self._path(self.path(pattern)))
        return sorted(str(each.getPath().toString()) for each in statuses or ())

    def read(self, name: str) -> str:
        stream = self._file_system.open(self._path(self.path(name)))
        try:
            text = self._read_all(stream, "UTF-8")
        finally:
            stream.close()
        return str(text)

    def write(self, name: str, text: str) -> None:
        """Write a new file atomically.

        Raises:
            PipelineError: The file exists already.
        """
        target = self._path(self.path(name))
        staged = self._path(target.getParent(), f".{uuid.uuid4().hex}.tmp")
        with _errors_at(self.root):
            stream = self._file_system.create(staged, True)
            try:
                stream.write(bytearray(text, "utf-8"))
            finally:
                stream.close()
            if not self._file_system.exists(target) and self._file_system.rename(staged, target):
                return
            self._file_system.delete(staged, False)
        raise PipelineError(
            f"{target.toString()} exists already, because another pipeline writes to the same "
            "directory: stop one of the pipelines"
        )

    def delete(self, path: str) -> None:
        """Delete a file or directory, given by its full path."""
        self._file_system.delete(self._path(path), True)


@contextmanager
def _errors_at(directory: str) -> Iterator[None]:
    """Raise PipelineError without the JVM's stack."""
    try:
        yield
    except Py4JJavaError as error:
        reason = str(error.java_exception.toString())
    except PySparkException as error:  # PySpark converts some of Java's errors
        reason = str(error).strip().partition("\n")[0]
    else:
        return
    raise PipelineError(f"cannot store the tables in {directory}: {reason}")
