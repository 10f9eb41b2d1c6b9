"""Parse the paths in a session's workspace that callers give."""

from __future__ import annotations

from ...jail.mounts import WORKSPACE
from ...snapshots.workspace.workspace_files import DEEPEST, LONGEST_PATH

_LONGEST_NAME = 255  # bytes: NAME_MAX of the kernel


def parse(path: str, tier: str = "jailed") -> list[str]:
    """Return the components of `path`, none for the workspace itself.

    `path` is relative to the workspace; in tier "jailed" "/workspace/..." is the same.

    Raises:
        TypeError, ValueError: naming `path` and its fault.
    """
    if not isinstance(path, str):
        raise TypeError(f"path must be a str, not {type(path).__name__}")
    _check_bytes(path)
    names = [name for name in path.split("/") if name not in ("", ".")]
    if path.startswith("/"):
        if tier != "jailed" or names[:1] != [WORKSPACE.strip("/")]:
            raise ValueError(f"path {path!r} must be relative to the workspace")
        del names[0]
    if ".." in names:
        raise ValueError(f"path {path!r} must not lead upwards by '..'")
    # The last component is a file's, which cannot end in a slash.
    if len(names) > DEEPEST + 1:
        raise ValueError(f"path {path[:80]!r}... is over {DEEPEST} directories deep")
    return names


def _check_bytes(path: str) -> None:
    if "\0" in path:
        raise ValueError(f"path {path!r} has a null character in it")
    try:
        # The kernel's encoding, whatever this process's own is.
        encoded = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ValueError(f"path {path!r} cannot be encoded: {error.reason}") from None
    if len(encoded) > LONGEST_PATH:
        raise ValueError(f"path is {len(encoded):,} bytes long; the limit is {LONGEST_PATH:,}")
    longest = max(map(len, encoded.split(b"/")))
    if longest > _LONGEST_NAME:
        raise ValueError(f"path has a name of {longest:,} bytes; the limit is {_LONGEST_NAME}")
