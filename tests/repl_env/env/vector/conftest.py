"""A group of four environments, and the templates that it makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from repl_env import REPLVectorEnv
from repl_sandbox import Sandbox


@pytest.fixture
def envs(sandbox: Sandbox) -> Iterator[REPLVectorEnv]:
    with REPLVectorEnv(4, sandbox=sandbox) as envs:
        yield envs


@pytest.fixture
def templates(monkeypatch: pytest.MonkeyPatch) -> list[Sandbox]:
    """The templates that are made from here on."""
    made: list[Sandbox] = []
    with_shared = Sandbox.with_shared

    def noted(self: Sandbox, **objects: Any) -> Sandbox:
        made.append(with_shared(self, **objects))
        return made[-1]

    monkeypatch.setattr(Sandbox, "with_shared", noted)
    return made
