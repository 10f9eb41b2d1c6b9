"""Warnings of the libraries that trainers come with."""

from __future__ import annotations

import pytest

KINDS = ("DeprecationWarning", "FutureWarning", "UserWarning")


def ignore(config: pytest.Config, *more: str) -> None:
    """Ignore warnings of libraries, of these kinds too; warnings of this project are errors."""
    for kind in (*KINDS, *more):
        config.addinivalue_line("filterwarnings", f"ignore::{kind}")
