"""`APIKeys`: API keys, of which a server knows only the hashes.

A key file has one line for each key, `name:hash`, the hash being the SHA-256 of the key in 64
hexadecimal digits. Empty lines and what follows a `#` are for people. A plain hash is enough: a key
is 256 random bits, which no table and no guessing reaches.
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
from typing import TYPE_CHECKING

from ..tenants.tenant import Tenant

if TYPE_CHECKING:
    from ..settings import Settings

# In the environment: lines of a key file, separated by commas or line breaks.
VARIABLE = "REPL_ENV_API_KEYS"

_KEY_BYTES = 32
# Marks a key as one of ours to whoever, or whatever program, finds it where it should not be.
_PREFIX = "repl_"
# Names go into logs and labels of metrics, so they are short and plain.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HASH = re.compile(r"[0-9a-fA-F]{64}")


class APIKeys:
    """Who has which key. Empty: there are none, and nobody is let in by one."""

    __slots__ = ("_hashes",)

    def __init__(self, hashes: Mapping[str, bytes]) -> None:
        self._hashes = dict(hashes)

    @classmethod
    def read(cls, path: Path) -> APIKeys:
        """The keys of a file.

        Raises:
            ValueError: naming the line that is wrong, or the file if everybody may write to it.
            OSError: it cannot be read.
        """
        with path.open(encoding="utf-8-sig") as file, named(path):
            if os.fstat(file.fileno()).st_mode & stat.S_IWOTH:
                raise ValueError(f"{path}: everybody may write to it; chmod o-w {path}")
            return cls.parse(file, str(path))

    @classmethod
    def of(cls, settings: Settings) -> APIKeys:
        """The keys of a server: of its key file and of the environment.

        Raises:
            ValueError, OSError: as `read` and `parse` do.
        """
        written = cls({}) if settings.api_keys is None else cls.read(settings.api_keys)
        return written | cls.parse(settings.hashed_keys)

    @classmethod
    def parse(cls, lines: Iterable[str], source: str = VARIABLE) -> APIKeys:
        """The keys of lines. `source` is named in errors.

        Raises:
            ValueError: naming the line that is wrong. It does not repeat the line, which may be a
                key that somebody forgot to hash.
        """
        hashes: dict[str, bytes] = {}
        taken: set[bytes] = set()
        for number, line in enumerate(lines, 1):
            entry = line.partition("#")[0].strip()
            if not entry:
                continue
            where = f"{source}, line {number}"
            name, _, digits = (part.strip() for part in entry.partition(":"))
            if not _NAME.fullmatch(name) or not _HASH.fullmatch(digits):
                raise ValueError(f"{where}: not `name:hash` as `repl-env keys` writes it")
            digest = bytes.fromhex(digits)
            if name in hashes:
                raise ValueError(f"{where}: there is a key named {name!r} already")
            if digest in taken:
                raise ValueError(f"{where}: the key of {name!r} is there under another name")
            hashes[name] = digest
            taken.add(digest)
        return cls(hashes)

    def __contains__(self, name: object) -> bool:
        """Whether there is a key of this name."""
        return name in self._hashes

    def __len__(self) -> int:
        return len(self._hashes)

    def __repr__(self) -> str:
        return f"Keys({', '.join(self._hashes)})"

    def __or__(self, other: APIKeys) -> APIKeys:
        """The keys of both.

        Raises:
            ValueError: a name or a key is in both.
        """
        taken = set(self._hashes.values())
        for name, digest in other._hashes.items():
            if name in self._hashes or digest in taken:
                raise ValueError(f"the key of {name!r} is in the key file and in {VARIABLE}")
        return APIKeys({**self._hashes, **other._hashes})

    def tenant(self, presented: str) -> Tenant | None:
        """Who has the key `presented`; None if nobody has.

        It takes as long whichever key it is, and if it is none.
        """
        digest = _digest(presented)
        found = None
        for name, known in self._hashes.items():
            if hmac.compare_digest(digest, known):
                found = name
        return None if found is None else Tenant("key", found)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """ValueError, naming the file, where bytes of it that are read are no text."""
    try:
        yield
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not a file of text, as `repl-env keys` writes it") from None


def new_key(name: str) -> tuple[str, str]:
    """A key for `name`, and its line for a key file. The key itself is kept nowhere.

    Raises:
        ValueError: `name` is not 1 to 64 letters, digits, dots, dashes and underscores.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"a name is 1 to 64 letters, digits, dots, dashes and underscores, not {name!r}"
        )
    key = _PREFIX + secrets.token_urlsafe(_KEY_BYTES)
    return key, f"{name}:{_digest(key).hex()}"


def lines_of(value: str) -> list[str]:
    """The lines in the value of the environment variable."""
    return value.replace(",", "\n").splitlines()


def _digest(key: str) -> bytes:
    # A header may hold any bytes, and so may what stands for them here.
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
