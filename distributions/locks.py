"""A lock read: the requirements that `make lock` has pinned, each with its hashes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.requirements import Requirement

HEAD = """\
# The versions that repl-env is tested with, for pip's --constraint. `make dist` writes this file
# from requirements.lock, which has the hashes too.
"""


def entries(lock: str) -> Iterator[tuple[Requirement, list[str]]]:
    """Each requirement of a lock's text, and the options that hold its files to their hashes."""
    for entry in re.split(r"^(?=[\w.-]+==)", lock, flags=re.MULTILINE)[1:]:
        hashes = re.findall(r"--hash=sha256:\w+", entry)
        yield Requirement(entry.partition("\\")[0].strip()), hashes


def needed(lock: str, version: str, machine: str) -> Iterator[str]:
    """Requirements of a lock, with hashes, that CPython of that version on Linux has.

    Without their markers, which pip would evaluate for the Python that runs it.
    """
    there = {
        "python_version": ".".join(version.split(".")[:2]),
        "python_full_version": version,
        "implementation_version": version,
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "platform_machine": machine,
        "platform_system": "Linux",
        "sys_platform": "linux",
        "os_name": "posix",
    }
    for requirement, hashes in entries(lock):
        if requirement.marker is None or requirement.marker.evaluate(there):
            yield f"{requirement.name}{requirement.specifier} {' '.join(hashes)}\n"


def constraints(lock: str) -> str:
    """The versions of a lock alone: a file with hashes would make pip want one for every wheel."""
    return HEAD + "".join(f"{requirement}\n" for requirement, _ in entries(lock))
