"""Where the quotas are kept that admin tools set."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypedDict

from aiokafka_lite.broker.log.files import replace_file
from aiokafka_lite.broker.network.quotas import ClientQuotas, QuotaKey
from aiokafka_lite.errors import KafkaStorageError

QUOTAS_FILE: Final = "quotas.json"
FORMAT: Final = 1


class _StoredEntity(TypedDict):
    names: dict[str, str | None]
    quotas: dict[str, float]


class _StoredQuotas(TypedDict):
    format: int
    entities: list[_StoredEntity]


class QuotaFile:
    """Keeps quotas across restarts.

    Args:
        data_dir: Where; None forgets them.
        quotas: What is kept.
        run_slowly: Does disk work in its turn.
    """

    def __init__(
        self,
        data_dir: Path | None,
        quotas: ClientQuotas,
        run_slowly: Callable[[Callable[[], None]], None],
    ) -> None:
        self._path = None if data_dir is None else data_dir / QUOTAS_FILE
        self._quotas = quotas
        self._run_slowly = run_slowly

    def save(self) -> None:
        """Store all quotas; `DiskQueue.settled` says when they are durable."""
        path = self._path
        if path is None:
            return
        entities = [
            _StoredEntity(
                names=dict(entity), quotas={key.value: value for key, value in quotas.items()}
            )
            for entity, quotas in self._quotas
        ]
        content = json.dumps(_StoredQuotas(format=FORMAT, entities=entities), indent=1).encode()
        self._run_slowly(lambda: replace_file(path, content))

    def load(self) -> None:
        """Set the quotas that were stored. Blocks on the disk, before the broker listens.

        Raises:
            KafkaStorageError: The file cannot be understood.
        """
        if self._path is None:
            return
        try:
            stored: _StoredQuotas = json.loads(self._path.read_bytes())
            if stored["format"] != FORMAT:
                raise KafkaStorageError(
                    f"{self._path} has format {stored['format']}, this version reads {FORMAT}"
                )
            for told in stored["entities"]:
                entity = tuple(sorted(told["names"].items(), key=lambda item: item[0]))
                for key, value in told["quotas"].items():
                    self._quotas.put(entity, QuotaKey(key), float(value))
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise KafkaStorageError(f"{self._path} cannot be read: {error!r}") from error
