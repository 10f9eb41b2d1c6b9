"""Large blocks of a session lie in huge pages: a fork copies one entry for each 2 MiB."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path

import pytest

from repl_sandbox import Sandbox, Session

_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")

# A process of `confined` may not read its own smaps, so the template is measured. ⏎⏎The flags of
# the mapping that holds `address`, and its KiB in huge pages.
LOOK = """
def look(address):
    for line in open("/proc/self/smaps"):
        field, *rest = line.split()
        if "-" in field:
            first, last = (int(end, 16) for end in field.split("-"))
            here = first <= address < last
        elif here and field == "AnonHugePages:":
            huge = int(rest[0])
        elif here and field == "VmFlags:":
            return rest, huge
"""


def _asks_for_huge_pages() -> bool:
    library, _, version = os.confstr("CS_GNU_LIBC_VERSION").partition(" ")
    return (
        library == "glibc"
        and tuple(map(int, version.split("."))) >= (2, 35)
        and _ENABLED.exists()
        and "[madvise]" in _ENABLED.read_text()
    )


pytestmark = pytest.mark.skipif(
    platform.system() != "Linux" or not _asks_for_huge_pages(),
    reason="the C library asks for none, or the kernel gives them unasked or not at all",
)


@pytest.fixture
def session(tier: str, open_python: str) -> Iterator[Session]:
    with Sandbox(isolation=tier, python=open_python) as sandbox, sandbox.session() as session:
        assert session.run(LOOK).error is None
        yield session


@pytest.mark.parametrize("tier", ["jailed", "process"])
def test_a_large_block_asks_for_huge_pages(session: Session) -> None:
    session.run("block = b'x' * (16 << 20)")
    assert session.run("'hg' in look(id(block) + (8 << 20))[0]").value == "True"


@pytest.mark.parametrize("tier", ["jailed", "process"])
def test_a_small_block_has_small_pages(session: Session) -> None:
    session.run("small = [bytes(1000) for _ in range(500)]")
    assert session.run("{look(id(one))[1] for one in small}").value == "{0}"
