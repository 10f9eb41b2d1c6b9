"""`PythonExecutor`: a session with the methods of OpenEnv's class, at its module path."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from repl_env.common.display import Closeable, set_module
from repl_env.common.values import at_least, check_callable
from repl_env.env.options import check_name
from repl_env.episode.observations import failure, render
from repl_env.episode.sandboxes import SandboxProvider, SandboxSettings
from repl_env.models import DEFAULT_MAX_OUTPUT_LENGTH
from repl_sandbox import Policy, Sandbox, Session
from repl_sandbox.tables import Settable
from repl_sandbox.types import JSON

# `PythonExecutor`: a session with the methods of OpenEnv's class of that name.
#
# The kernel contains the session, so code may use the whole language and every installed module,
# unless a list of imports is given: the list is a lint policy, not a security boundary.

# A session gets its host functions at the start, and this class accepts them at any time: one
# function dispatches, and the session defines the names.
DISPATCH = "call_host"


# Modules that OpenEnv's executor (smolagents) always lets code import.
_ALWAYS = (
    "collections", "datetime", "itertools", "math", "queue", "random", "re", "stat", "statistics",
    "time", "unicodedata",
)  # fmt: skip


@set_module("repl_env.server")
class PythonExecutor(Closeable):
    """One persistent namespace; one caller at a time.

    Args:
        max_output_length: characters of each output that are shown; assignable.
        allowed_imports: modules that code may import, with their submodules, in addition to those
            that OpenEnv's executor always allows. "numpy.*" is "numpy", and "*" all modules. None:
            no policy. Assignable: a new list holds from the next reset.
        sandbox: makes the session; excludes `allowed_imports`.

    Raises:
        TypeError, ValueError: naming the argument.
    """

    def __init__(
        self,
        max_output_length: int = DEFAULT_MAX_OUTPUT_LENGTH,
        allowed_imports: Iterable[str] | None = None,
        *,
        sandbox: Sandbox | None = None,
    ) -> None:
        self.max_output_length = max_output_length
        self._sandbox, self._open_lock = sandbox, threading.Lock()
        self.allowed_imports = allowed_imports
        self._functions: dict[str, Callable[..., Any]] = {}
        self._session: Session | None = None
        self._cells = 0

    @property
    def max_output_length(self) -> int:
        """Characters of each output that are shown."""
        return self._limit

    @max_output_length.setter
    def max_output_length(self, length: int) -> None:
        self._limit = at_least(length, 1, "max_output_length")

    @property
    def allowed_imports(self) -> Iterable[str] | None:
        """The modules that code may import; an assigned list holds from the next reset."""
        return self._allowed

    @allowed_imports.setter
    def allowed_imports(self, modules: Iterable[str] | None) -> None:
        policy = None if modules is None else _lint(modules)
        settings = SandboxSettings.of("auto", None, None, (), policy)
        self._sandbox_provider, self._allowed = SandboxProvider(self._sandbox, settings), modules

    def execute(self, code: str) -> dict[str, Any]:
        """Run `code` and return the fields of `CodeBlockResult`, including OpenEnv's six."""
        session = self._open()
        outcome = session.run(code)
        self._cells += 1
        memory = int(self._sandbox_provider.limits.memory)
        failed = failure(outcome, memory)
        result = render(outcome, failed, cell=self._cells, limit=self._limit, memory=memory)
        if outcome.state == "restarted":
            self._define(session, *self._functions)
        return result.model_dump()

    def set_context(self, context: Settable, variable_name: str = "context") -> None:
        """Set the context variable."""
        self.set_variable(variable_name, context)

    def set_variable(self, name: str, value: Settable) -> None:
        """Set a variable."""
        self._open().set(name, value)

    def get_variable(self, name: str) -> JSON:
        """Return the value of a variable, or None; TypeError if JSON cannot carry the value."""
        try:
            value: JSON = self._open().get(name)
            return value
        except KeyError:
            return None

    def list_variables(self) -> list[str]:
        """Return the names in the namespace."""
        return [variable.name for variable in self._open().variables()]

    def inject_function(self, name: str, func: Callable[..., Any]) -> None:
        """Let code in the session call `func` on the host as `name`; JSON in and out.

        Raises:
            TypeError, ValueError: `func` is not callable, or `name` is not a valid name.
        """
        check_name(name, "inject_function")
        check_callable(func, f"inject_function: {name}")
        session = self._open()
        self._functions[name] = func
        self._define(session, name)

    def reset(self) -> None:
        """Start an empty session: variables and injected functions are gone."""
        self._functions.clear()
        self.close()

    def close(self) -> None:
        """Close the session; the next use opens another."""
        session, self._session, self._cells = self._session, None, 0
        if session is not None:
            session.close()

    def _open(self) -> Session:
        with self._open_lock:  # if two threads opened a session at once, one session would leak
            if self._session is None:
                host = {DISPATCH: self._dispatch}
                self._session = self._sandbox_provider.make(
                    lambda sandbox: sandbox.session(host=host)
                )
                self._define(self._session, *self._functions)
            return self._session

    def _dispatch(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return self._functions[name](*args, **kwargs)

    def _define(self, session: Session, *names: str) -> None:
        for name in names:
            self._cells += 1
            session.run(
                f"def {name}(*args, **kwargs):\n    return {DISPATCH}({name!r}, list(args), kwargs)"
            )


def _lint(modules: Iterable[str]) -> Policy | None:
    """Return the lint policy for a list of imports.

    TypeError or ValueError if the list is invalid.
    """
    if isinstance(modules, str) or not isinstance(modules, Iterable):
        kind = type(modules).__name__
        raise TypeError(f"allowed_imports must be a list of module names, not {kind}")
    names = list(modules)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"allowed_imports: {name!r} must be a str, not {type(name).__name__}")
    if "*" in names:
        return None
    try:
        return Policy("lint", imports=(*_ALWAYS, *(name.removesuffix(".*") for name in names)))
    except ValueError as error:
        raise ValueError(f"allowed_imports: {error}") from None


__all__ = ["PythonExecutor"]
