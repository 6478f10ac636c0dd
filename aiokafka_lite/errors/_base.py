"""The two roots: KafkaError, and BrokerResponseError with its registry of codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from aiokafka_lite._compat import Self

if TYPE_CHECKING:
    from aiokafka_lite.structs import TopicPartition


class KafkaError(RuntimeError):
    """Root of everything this package raises about Kafka.

    Attributes:
        retriable: The same call may succeed later without any change.
        invalid_metadata: The cluster's metadata should be refreshed before trying again.
        tp: The partition concerned, when the error is tied to one.
        offset: The offset concerned, when the error is tied to one record or batch.
        next_offset: Where reading can go on behind that record or batch, when it is tied to one.
        batch_indexes: Which records of a batch a broker names as at fault (KIP-467), from 0 on.
    """

    retriable: ClassVar[bool] = False
    invalid_metadata: ClassVar[bool] = False
    tp: TopicPartition | None = None
    offset: int | None = None
    next_offset: int | None = None
    batch_indexes: tuple[int, ...] = ()

    def at(
        self, tp: TopicPartition, offset: int | None = None, next_offset: int | None = None
    ) -> Self:
        """Tie the error to a place in a partition and return it, for use in a raise."""
        self.tp = tp
        self.offset = offset
        self.next_offset = next_offset
        return self

    def __str__(self) -> str:
        name = type(self).__name__
        text = super().__str__()
        return f"{name}: {text}" if text else name


class BrokerResponseError(KafkaError):
    """A broker answered with an error code.

    Attributes:
        errno: Kafka's error code.
        message: Kafka's name of the code.
        description: What it means, in a sentence.
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
        retriable: bool = False,
        invalid_metadata: bool = False,
    ) -> None:
        super().__init_subclass__()
        if code is None:  # a user's subclass: it inherits its parent's code
            return
        if code in BrokerResponseError.by_code:
            raise TypeError(f"error code {code} is declared twice")
        cls.errno = code
        cls.message = name
        cls.description = cls.__doc__ or name
        cls.retriable = retriable or invalid_metadata
        cls.invalid_metadata = invalid_metadata
        BrokerResponseError.by_code[code] = cls

    def __str__(self) -> str:
        return f"[Error {self.errno}] {super().__str__()}"
