"""Cells that run in this process, without a session."""

from __future__ import annotations

import asyncio
import gc
import sys

import pytest

from repl_sandbox.types import ErrorInfo
from repl_sandbox.worker.evaluation import CellRun, run_cell
from repl_sandbox.worker.namespace import Namespace
from tests.waiting import PATIENCE


@pytest.fixture(scope="module", autouse=True)
def collected():
    """Leave objects of other files to no collection here, of which each test makes one."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def namespace():
    main, ours = sys.modules["__main__"], dict(vars(asyncio))
    made = Namespace()
    yield made
    sys.modules["__main__"] = main
    vars(asyncio).update(ours)
    if made.loop is not None:
        pending = asyncio.all_tasks(made.loop)
        for task in pending:
            task.cancel()
        if pending:
            done, left = made.loop.run_until_complete(asyncio.wait(pending, timeout=PATIENCE))
            assert not left
            for task in done:
                task.cancelled() or task.exception()  # which is no news here
        made.loop.close()
        asyncio.set_event_loop(None)
    made.globals.clear()
    gc.collect()  # leftovers of this session report errors here, not in the middle of another test


class Cells:
    """Cells with numbers that count up, as in a session."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.number = 0

    def __call__(self, source: str, **options) -> CellRun:
        self.number += 1
        return run_cell(source, self.number, self.namespace, **options)

    def get(self, name: str) -> object:
        return self.namespace.globals[name]


@pytest.fixture
def run(namespace):
    return Cells(namespace)


@pytest.fixture
def error(namespace):
    """Return the error of the last of some cells, numbered from 1."""

    def collect(*cells: str) -> ErrorInfo:
        for number, cell in enumerate(cells, 1):
            found = run_cell(cell, number, namespace).error
        assert found is not None
        return found

    return collect
