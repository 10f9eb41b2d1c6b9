"""The C files of this folder, their compiler flags, and the hash of both.

The loader and the build import this, on any system.
"""

from __future__ import annotations

import hashlib
import os

FOLDER = os.path.dirname(os.path.abspath(__file__))
MACHINES = ("x86_64", "aarch64")
# Freestanding: no libc is linked or called, so that one library serves glibc, musl and every
# interpreter. `-z defs` makes a call of a missing function (memcpy by the compiler, say) an error
# of the build and not of a session.
FLAGS = (
    *("-std=c11", "-O2", "-fPIC", "-shared", "-nostdlib", "-ffreestanding", "-fno-builtin"),
    *("-fno-stack-protector", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"),
    *("-Wl,-z,defs", "-Wl,-z,noexecstack", "-Wl,-z,now", "-Wl,--build-id=none", "-Wl,-s"),
)
# Otherwise GCC calls functions of its own library for atomic operations.
MACHINE_FLAGS = {"aarch64": ("-mno-outline-atomics",)}


def file_name(machine: str) -> str:
    """Return the name of the library for a machine, named as by uname(2)."""
    return f"repl_native-{machine}.so"


def c_files(folder: str = FOLDER) -> list[str]:
    """Return the sorted names of the files to compile."""
    return sorted(name for name in os.listdir(folder) if name.endswith(".c"))


def build_hash(folder: str = FOLDER) -> str:
    """Return the hash of all C files, headers and flags: a library with another one is stale."""
    digest = hashlib.sha256(repr((FLAGS, MACHINE_FLAGS)).encode())
    for name in sorted(name for name in os.listdir(folder) if name.endswith((".c", ".h"))):
        with open(os.path.join(folder, name), "rb") as file:
            content = file.read()
        digest.update(f"\0{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:32]
