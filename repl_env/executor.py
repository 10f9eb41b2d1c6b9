"""`PythonExecutor`: a session with OpenEnv's methods, for code that was written for that class.

There is no list of allowed imports: the session is held by the kernel, and the whole language and
every installed module may be used in it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from repl_env.arguments import at_least, check_callable
from repl_env.models import DEFAULT_MAX_OUTPUT_LENGTH
from repl_env.observations import failure, render
from repl_env.sandboxes import SandboxSettings, Source
from repl_env.settings import check_name
from repl_sandbox import Sandbox, Session
from repl_sandbox.types import JSON

# Host functions are named when a session begins, and this class takes them at any time: one
# function dispatches, and the names are defined in the session.
DISPATCH = "call_host"


class PythonExecutor:
    """One persistent namespace. `max_output_length` is in characters of each output."""

    def __init__(
        self,
        max_output_length: int = DEFAULT_MAX_OUTPUT_LENGTH,
        *,
        sandbox: Sandbox | None = None,
    ) -> None:
        self._limit = at_least(max_output_length, 1, "max_output_length")
        self._source = Source(sandbox, SandboxSettings())
        self._functions: dict[str, Callable[..., Any]] = {}
        self._session: Session | None = None
        self._cells = 0

    def execute(self, code: str) -> dict[str, Any]:
        """Run `code` and return the fields of `CodeBlockResult`, among them OpenEnv's six."""
        outcome = self._open().run(code)
        self._cells += 1
        result = render(outcome, failure(outcome), cell=self._cells, limit=self._limit)
        if outcome.state == "restarted":
            self._define(*self._functions)
        return result.model_dump()

    def set_context(self, context: str | bytes | JSON, variable_name: str = "context") -> None:
        """Put the context into the namespace."""
        self.set_variable(variable_name, context)

    def set_variable(self, name: str, value: str | bytes | JSON) -> None:
        """Assign a variable of the namespace."""
        self._open().set(name, value)

    def get_variable(self, name: str) -> JSON:
        """The value of a variable; None if there is none. TypeError if JSON cannot carry it."""
        try:
            value: JSON = self._open().get(name)
            return value
        except KeyError:
            return None

    def list_variables(self) -> list[str]:
        """The names in the namespace."""
        return [variable.name for variable in self._open().variables()]

    def inject_function(self, name: str, func: Callable[..., Any]) -> None:
        """Let code in the session call `func` on the host, by `name`; JSON in and out.

        Raises:
            TypeError, ValueError: `func` is no function, or `name` cannot name one.
        """
        check_name(name, "inject_function")
        check_callable(func, f"inject_function: {name}")
        self._functions[name] = func
        self._open()
        self._define(name)

    def reset(self) -> None:
        """Begin anew: variables and injected functions are gone."""
        self._functions.clear()
        self.close()

    def close(self) -> None:
        """Close the session; the next use opens another."""
        session, self._session, self._cells = self._session, None, 0
        if session is not None:
            session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _open(self) -> Session:
        if self._session is None:
            host = {DISPATCH: self._dispatch}
            self._session = self._source.make(lambda sandbox: sandbox.session(host=host))
            self._define(*self._functions)
        return self._session

    def _dispatch(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return self._functions[name](*args, **kwargs)

    def _define(self, *names: str) -> None:
        for name in names:
            self._cells += 1
            self._open().run(
                f"def {name}(*args, **kwargs):\n    return {DISPATCH}({name!r}, list(args), kwargs)"
            )
