"""The outcomes of a module of CPython's own tests: the source of a cell, and of a plain program.

Standard library only. The package `test` comes with the interpreter, not with this project.
"""

from __future__ import annotations

import importlib
import unittest
import warnings
from typing import Any


class Outcomes(unittest.TestResult):
    """Keeps one text a test: "passed", "skipped: REASON" or "failed: ERROR"."""

    def __init__(self) -> None:
        super().__init__()
        self.by_test: dict[str, str] = {}

    def stopTest(self, test: unittest.TestCase) -> None:
        """Count a test without any other outcome as passed."""
        super().stopTest(test)
        self.by_test.setdefault(test.id(), "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        """Note the reason."""
        self.by_test[test.id()] = f"skipped: {reason[:200]}"

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        """Note the error."""
        self.by_test[test.id()] = f"failed: {err[0].__name__}: {err[1]}"[:300]

    addFailure = addError  # noqa: N815 (a name of unittest)

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        """Note a failure: the interpreter's authors expect one."""
        self.by_test[test.id()] = "failed: unexpected success"

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        """Note the error of a part under the name of the whole test."""
        if err is not None:
            self.addError(test, err)


def outcomes(name: str) -> dict[str, str]:
    """Import `test.NAME`, run all of its tests, and return their outcomes by the tests' names."""
    support: Any = importlib.import_module("test.support")
    support.verbose, support.use_resources = 0, []
    module = importlib.import_module(f"test.{name}")
    result = Outcomes()
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        unittest.defaultTestLoader.loadTestsFromModule(module).run(result)
    return result.by_test
