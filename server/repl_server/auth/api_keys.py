"""`APIKeys`: API keys, of which the server stores only hashes.

A key file has one line per key: `name:hash`, with the SHA-256 of the key as 64 hexadecimal digits.
Empty lines and comments after `#` are ignored. An unsalted hash suffices: a key has 256 random
bits.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..tenants.tenant import Tenant

# Environment variable with lines of a key file, separated by commas or line breaks.
VARIABLE = "REPL_ENV_API_KEYS"

_KEY_BYTES = 32
# Identifies a leaked key, to people and to secret scanners.
_PREFIX = "repl_"
# Names are short and plain, because they appear in logs and as metric labels.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HASH = re.compile(r"[0-9a-fA-F]{64}")


class APIKeys:
    """Hashes of keys by name; may be empty."""

    __slots__ = ("_hashes",)

    def __init__(self, hashes: Mapping[str, bytes]) -> None:
        self._hashes = dict(hashes)

    @classmethod
    def read(cls, path: Path) -> APIKeys:
        """Read a key file.

        Raises:
            ValueError: naming the invalid line, or the file if it is world-writable.
            OSError: the file cannot be read.
        """
        with path.open(encoding="utf-8-sig") as file, named(path):
            if os.fstat(file.fileno()).st_mode & stat.S_IWOTH:
                raise ValueError(f"{path} is writable by everybody: chmod o-w {path}")
            return cls.parse(file, str(path))

    @classmethod
    def parse(cls, lines: Iterable[str], source: str = VARIABLE) -> APIKeys:
        """Parse lines of a key file; errors name `source`.

        Raises:
            ValueError: naming the invalid line by its number only, because the line may be a key
                that somebody forgot to hash.
        """
        hashes: dict[str, bytes] = {}
        digests: set[bytes] = set()
        for number, line in enumerate(lines, 1):
            entry = line.partition("#")[0].strip()
            if not entry:
                continue
            where = f"{source}, line {number}"
            name, _, digits = (part.strip() for part in entry.partition(":"))
            if not _NAME.fullmatch(name) or not _HASH.fullmatch(digits):
                raise ValueError(f"{where}: must be `name:hash`, as `repl-env keys` writes it")
            digest = bytes.fromhex(digits)
            if name in hashes:
                raise ValueError(f"{where}: a key named {name!r} exists already")
            if digest in digests:
                raise ValueError(f"{where}: the key of {name!r} has another name already")
            hashes[name] = digest
            digests.add(digest)
        return cls(hashes)

    def __contains__(self, name: object) -> bool:
        """Return whether a key has this name."""
        return name in self._hashes

    def __len__(self) -> int:
        return len(self._hashes)

    def __repr__(self) -> str:
        return f"APIKeys({', '.join(self._hashes)})"

    def __or__(self, other: APIKeys) -> APIKeys:
        """The keys of both.

        Raises:
            ValueError: both have the same name or key.
        """
        digests = set(self._hashes.values())
        for name, digest in other._hashes.items():
            if name in self._hashes or digest in digests:
                raise ValueError(f"the key of {name!r} is in the key file and in {VARIABLE}")
        return APIKeys({**self._hashes, **other._hashes})

    def tenant(self, presented: str) -> Tenant | None:
        """The tenant of the key `presented`; None for an unknown key. Takes constant time."""
        digest = _digest(presented)
        found = None
        for name, known in self._hashes.items():
            if hmac.compare_digest(digest, known):
                found = name
        return None if found is None else Tenant("key", found)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Raise ValueError, naming the file, if the block reads bytes that are not text."""
    try:
        yield
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file, as `repl-env keys` writes it") from None


def new_key(name: str) -> tuple[str, str]:
    """Generate a key for `name`; returns the key and its line for a key file.

    Raises:
        ValueError: `name` is not 1 to 64 letters, digits, dots, dashes and underscores.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"a name must be 1 to 64 letters, digits, dots, dashes and underscores, not {name!r}"
        )
    key = _PREFIX + secrets.token_urlsafe(_KEY_BYTES)
    return key, f"{name}:{_digest(key).hex()}"


def lines_of(value: str) -> list[str]:
    """The lines in the value of the environment variable VARIABLE."""
    return value.replace(",", "\n").splitlines()


def _digest(key: str) -> bytes:
    # A header may contain any bytes, which are decoded to surrogates.
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
