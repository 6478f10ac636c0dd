"""CRC32C: the wheel's function, without what else is in its package."""

from __future__ import annotations

import importlib.machinery
import subprocess
import sys

import crc32c
import pytest

from aiokafka_lite.records import checksum

DIGITS = b"123456789"
CRC_OF_DIGITS = 0xE3069283  # the check value of CRC-32C (iSCSI) in every catalogue of CRCs


def test_checksum_is_crc32c_whole_and_in_parts() -> None:
    assert checksum.crc32c(DIGITS) == CRC_OF_DIGITS == crc32c.crc32c(DIGITS)
    assert checksum.crc32c(memoryview(DIGITS)[3:], checksum.crc32c(DIGITS[:3])) == CRC_OF_DIGITS


def test_first_checksum_does_not_load_the_packages_command_line() -> None:
    code = (
        "import sys\n"
        "from aiokafka_lite.records import checksum\n"
        "before = set(sys.modules)\n"
        f"print(checksum.crc32c({DIGITS!r}), checksum.crc32c({DIGITS!r}))\n"
        "print(*set(sys.modules) - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    checksums, loaded = done.stdout.splitlines()
    assert checksums.split() == [str(CRC_OF_DIGITS)] * 2
    assert not {"argparse", "email", "importlib.metadata"} & set(loaded.split())


def test_package_of_another_layout_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.machinery.PathFinder, "find_spec", lambda *_: None)
    monkeypatch.setattr(checksum, "crc32c", checksum._import_first)
    assert checksum.crc32c(DIGITS) == CRC_OF_DIGITS
    assert checksum.crc32c is crc32c.crc32c
