"""`SpaceConfig`: the choices for a Space, checked."""

from __future__ import annotations

import re
from dataclasses import dataclass

BASE = "python:3.12-slim"
# A reference of an image: registry, path, tag, digest. Nothing in it can end a line or an argument.
_IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._:/@-]{0,254}")
_LONGEST_TITLE = 100
# Names of the hub: letters, digits, and marks that neither begin nor end a name.
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?"
_REPO = re.compile(rf"{_NAME}/{_NAME}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceConfig:
    """The choices for a Space.

    Args:
        title: as the hub shows it.
        keyed: ask every request for a key; else anybody may use it, within quotas.
        repo: the Space, as OWNER/NAME, that the README names; None: not known yet.
        base: the image that the Space's is built on; one of Debian with CPython of at least 3.11.

    Raises:
        ValueError: naming the field that is wrong.
    """

    title: str = "repl-env"
    keyed: bool = False
    repo: str | None = None
    base: str = BASE

    def __post_init__(self) -> None:
        title = self.title
        if not (title.strip() and title.isprintable() and len(title) <= _LONGEST_TITLE):
            raise ValueError(
                f"title must be one line of 1 to {_LONGEST_TITLE} characters, not {title[:200]!r}"
            )
        if self.repo is not None and not _is_repo(self.repo):
            raise ValueError(
                f"a Space is named OWNER/NAME in letters, digits, '-', '_' and '.',"
                f" not {self.repo[:200]!r}"
            )
        if _IMAGE.fullmatch(self.base) is None:
            raise ValueError(f"base must be the name of an image, not {self.base[:200]!r}")

    @property
    def host(self) -> str:
        """The host that the hub serves the Space on."""
        return f"{subdomain(self.repo or 'OWNER/NAME')}.hf.space"


def subdomain(repo: str) -> str:
    """The name of a Space as a part of a host's, as the hub makes it."""
    return re.sub(r"[^a-z0-9]", "-", repo.lower())


def _is_repo(repo: str) -> bool:
    return _REPO.fullmatch(repo) is not None and "--" not in repo and ".." not in repo
