"""What a worker is asked between cells: variables, the host's functions, checkpoints."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..wire.messages import (
    Assign,
    Configure,
    Failed,
    Fetch,
    ListVariables,
    Load,
    Save,
    Value,
    Variables,
)
from . import values
from .answers import Answers
from .cell import Ran
from .cells import Cells
from .own_imports import own
from .seeding import seed
from .tracebacks import describe

if TYPE_CHECKING:
    from ..policies.rules import Rules
    from ..wire.offered import Offered


class Questions(Cells):
    """A namespace that the host can set up, look at, save and load."""

    def __init__(self, rules: Rules | None = None) -> None:
        super().__init__(rules)
        self._questions: dict[type, Callable[[Any], None]] = {
            Configure: self._configure,
            Assign: self._assign,
            Fetch: self._fetch,
            ListVariables: self._list,
            Save: self._carry_out,
            Load: self._carry_out,
        }

    def _configure(self, configure: Configure) -> None:
        faced = [offered for offered in configure.functions if not offered.is_plain]
        for offered in configure.functions:
            function = self._calls.function(offered)
            self._namespace.inject(offered.name, function, protected=True)
        if faced:
            self._put_faces_on(faced)
        if configure.answers is not None:
            self._answers = Answers(self._namespace, self._calls.answer)
            if configure.answers == "compatible":
                self._printed = self._answers.printed
        seed(configure.seed)
        for variable in configure.variables:
            self._bind(variable)
        # What was injected is not a change that the first cell made.
        self._changes.since_last()

    def _put_faces_on(self, faced: list[Offered]) -> None:
        # No part of the template: most sessions have none.
        faces = own(f"{__package__}.faces").Faces(self._calls)
        for offered in faced:
            self._namespace.inject(offered.name, faces.function(offered), protected=True)
        for name, error in faces.errors.items():
            self._namespace.inject(name, error, protected=True)

    def _bind(self, assign: Assign) -> None:
        value = values.read(assign, self._calls.memfd)
        self._namespace.globals[assign.name] = value
        if self._answers is not None and assign.name == "answer":
            self._answers.forget()

    def _assign(self, assign: Assign) -> None:
        try:
            self._bind(assign)
        except (MemoryError, ValueError, RecursionError, OSError) as error:
            reason = ": ".join(filter(None, (type(error).__name__, str(error))))
            self._channel.send(Failed("too large", reason))
            return
        self._changes.since_last()
        if self._copies is not None:
            self._copies.due = True
        self._channel.send(Value(b"null"))

    def _fetch(self, fetch: Fetch) -> None:
        if fetch.name not in self._namespace.globals:
            self._has_none(fetch.name)
        else:
            self._channel.send(values.write(self._namespace.globals[fetch.name]))

    def _has_none(self, name: str) -> None:
        self._channel.send(Failed("unknown", f"no variable {name!r}"))

    def _list(self, command: ListVariables) -> None:
        self._channel.send(Variables(tuple(self._changes.variables())))

    def _carry_out(self, errand: Save | Load) -> None:
        """Save or load the namespace: as a cell, it may be interrupted, and ends with a result."""
        self._used = True
        if self._copies is not None:
            self._copies.due = True
        try:
            fd = self._calls.memfd()
            self._interrupts.arm()
            ran = Ran(self._checkpoint(errand, fd), None)
        # Boundary: pickles run code of the user's, which may raise anything.
        except BaseException as error:  # noqa: BLE001
            self._interrupts.armed = False  # as in `_execute`
            ran = Ran(None, describe(error, 0))
        finally:
            self._interrupts.armed = False
        if self._is_a_child():
            self._end_child()
        self._streams.tidy()
        self._channel.send(self._result(errand.cell, ran, []))

    def _checkpoint(self, errand: Save | Load, fd: int) -> str:
        # What only checkpoints need is no part of the template.
        try:
            if type(errand) is Save:
                save = own(f"{__package__}.saving").save
                return str(save(self._namespace, self._answers, fd, errand.size))
            load = own(f"{__package__}.loading").load
            assert type(errand) is Load
            missing = str(load(self._namespace, self._answers, fd, json.loads(errand.manifest)))
            # What was restored is not a change that the first cell made.
            self._changes.since_last()
            return missing
        finally:
            try:
                os.close(fd)
            except OSError:
                pass  # closed by what a pickle ran
