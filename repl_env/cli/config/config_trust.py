"""The values that a configuration file may have.

A file that was found in the working directory may belong to a project that another person wrote.
Such a file must not choose who gets the user's API key, which code runs outside of sessions, how
sessions are isolated, who may use a server, or files outside of the project. A file that the user
names may.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .config_file import VARIABLE, ConfigFile, config_error

_SECRET = re.compile(r"(sk-|hf_|gsk_|xai-|repl_)[A-Za-z0-9_-]{16,}")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def _is_loopback(url: Any) -> bool:
    try:
        return urlsplit(str(url)).hostname in _LOOPBACK
    except ValueError:
        return False


def _names_no_code(value: Any) -> bool:
    """Return whether the value names no function of a file."""
    text = str(value)
    return not text.startswith("script:") and re.search(r"\.py:\w+$", text) is None


def _is_rubric_of_ours(value: Any) -> bool:
    """Return whether the value is the name of a rubric, and not `module:function`."""
    return ":" not in str(value)


def _never(value: Any) -> bool:
    return False


def _off(value: Any) -> bool:
    return value is False


# Values of parameters that a found file may have; any value of parameters that are not here.
_HARMLESS: Mapping[str, Callable[[Any], bool]] = {
    "base_url": _is_loopback,
    "llm_url": _is_loopback,
    "api_key_env": _never,
    "model": _names_no_code,
    "sub_model": _names_no_code,
    "rubric": _is_rubric_of_ours,
    "solver": _never,
    "isolation": lambda value: value in ("auto", "jailed"),
    "require": lambda value: value == "jailed",
    "image": _never,
    "runtime": _never,
    "python": _never,
    "mount": _never,
    "host": lambda value: value in _LOOPBACK,
    "api_keys": _never,
    "metrics_key": _never,
    "no_auth": _off,
    "origin": _never,
    "frame_ancestor": _never,
    "trusted_proxy": _never,
    "log_contents": _off,
    "login": _off,
    "force": _off,
    "replace": _off,
}


def check_value(file: ConfigFile, place: str, name: str, value: Any) -> None:
    """Raise typer.BadParameter if `file` may not give the parameter `name` this value.

    `place` names the key. Secrets are refused in every file, and not repeated.
    """
    if isinstance(value, str) and (_SECRET.search(value) or _has_password(value)):
        raise config_error(
            f"{place} looks like a secret; keep it in an environment variable, whose name "
            "--api-key-env gives"
        )
    if not file.named and not _HARMLESS.get(name, lambda value: True)(value):
        raise config_error(f"{place}: {_untrusted(file, 'this value')}")


def check_path(file: ConfigFile, place: str, path: Path) -> None:
    """Raise typer.BadParameter if a found file names a path outside of its folder."""
    if not file.named and not path.resolve().is_relative_to(file.path.parent.resolve()):
        raise config_error(f"{place}: {_untrusted(file, 'a path outside of its folder')}")


def _has_password(value: str) -> bool:
    try:
        return "://" in value and urlsplit(value).password is not None
    except ValueError:
        return False


def _untrusted(file: ConfigFile, what: str) -> str:
    return (
        f"a file that was found in the working directory may not give {what}, because another "
        f"person may have written the file. If you trust {file.path}, name it: "
        f"--config {file.path}, or {VARIABLE}={file.path} in the environment"
    )
