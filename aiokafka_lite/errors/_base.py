"""The base classes of all errors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

from aiokafka_lite._compat import Self

if TYPE_CHECKING:
    from aiokafka_lite.structs import TopicPartition


class KafkaError(RuntimeError):
    """Root of this package's errors.

    Attributes:
        retriable: The same call may succeed later without any change.
        invalid_metadata: The cluster's metadata should be refreshed before another attempt.
        tp: The partition, if the error concerns one.
        offset: The offset, if the error concerns one record or batch.
        next_offset: The position after that record or batch, to skip it with a seek.
        batch_indexes: The indexes of the records of a batch that a broker rejects (KIP-467).
    """

    retriable: ClassVar[bool] = False
    invalid_metadata: ClassVar[bool] = False
    tp: TopicPartition | None = None
    offset: int | None = None
    next_offset: int | None = None
    batch_indexes: tuple[int, ...] = ()

    def __init_subclass__(
        cls, *, retriable: bool | None = None, invalid_metadata: bool = False
    ) -> None:
        """Set the flags, unless they are inherited. Stale metadata make an error retriable."""
        super().__init_subclass__()
        if invalid_metadata or retriable is not None:
            cls.retriable = invalid_metadata or bool(retriable)
            cls.invalid_metadata = invalid_metadata

    def at(
        self, tp: TopicPartition, offset: int | None = None, next_offset: int | None = None
    ) -> Self:
        """Set the error's partition and offsets, and return it, for use in a raise."""
        self.tp = tp
        self.offset = offset
        self.next_offset = next_offset
        return self

    def __str__(self) -> str:
        name = type(self).__name__
        text = super().__str__()
        return f"{name}: {text}" if text else name


class BrokerResponseError(KafkaError):
    """A broker responded with an error code.

    Attributes:
        errno: Kafka's error code.
        message: Kafka's name of the code.
        description: Its meaning, in a sentence.
    """

    errno: ClassVar[int] = -1
    message: ClassVar[str] = "UNKNOWN_SERVER_ERROR"
    description: ClassVar[str] = ""

    by_code: ClassVar[dict[int, type[BrokerResponseError]]] = {}

    def __init_subclass__(
        cls,
        *,
        code: int | None = None,
        name: str = "",
        retriable: bool | None = None,
        invalid_metadata: bool = False,
    ) -> None:
        super().__init_subclass__(retriable=retriable, invalid_metadata=invalid_metadata)
        if code is None:  # a user's subclass: it inherits its parent's code
            return
        if code in BrokerResponseError.by_code:
            raise TypeError(f"error code {code} is declared twice")
        cls.errno = code
        cls.message = name or _name_of_code(cls.__name__)
        cls.description = cls.__doc__ or cls.message
        BrokerResponseError.by_code[code] = cls

    def __str__(self) -> str:
        return f"[Error {self.errno}] {super().__str__()}"


def _name_of_code(class_name: str) -> str:
    """Return "OFFSET_OUT_OF_RANGE" for OffsetOutOfRangeError."""
    words = class_name.removesuffix("Exception").removesuffix("Error")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", words).upper()
