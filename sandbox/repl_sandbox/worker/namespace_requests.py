"""`NamespaceRequests`: requests of the host between cells, mainly about variables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol.messages import Assign, Configure, Failed, Fetch, ListVariables, Value, Variables
from .host_stubs.host_call_client import HostCallClient
from .namespace.main_namespace import Namespace
from .namespace.trusted_imports import import_trusted
from .session_state import SessionState
from .variables import value_transfer
from .variables.final_answers import FinalAnswers
from .variables.random_seeding import seed
from .variables.variable_changes import VariableChanges
from .worker_channel import WorkerChannel

if TYPE_CHECKING:
    from ..protocol.function_schema import FunctionSchema


class NamespaceRequests:
    """Requests about one namespace; all but `configure` send a reply."""

    __slots__ = ("_calls", "_changes", "_channel", "_namespace", "_session")

    def __init__(
        self,
        session: SessionState,
        channel: WorkerChannel,
        calls: HostCallClient,
        namespace: Namespace,
        changes: VariableChanges,
    ) -> None:
        self._session, self._channel, self._calls = session, channel, calls
        self._namespace, self._changes = namespace, changes

    def configure(self, configure: Configure) -> None:
        """Give the namespace host functions, variables, answer functions and a random seed."""
        bound = [offered for offered in configure.functions if not offered.is_plain]
        for offered in configure.functions:
            function = self._calls.function(offered)
            self._namespace.inject(offered.name, function, protected=True)
        if bound:
            self._inject_functions(bound)
        if configure.answers is not None:
            answers = self._session.answers = FinalAnswers(self._namespace, self._calls.answer)
            if configure.answers == "compatible":
                self._session.printed = answers.printed
        seed(configure.seed)
        for variable in configure.variables:
            self._bind(variable)
        # Injected objects are not changes of the first cell.
        self._changes.since_last()

    def _inject_functions(self, bound: list[FunctionSchema]) -> None:
        # Not part of the template: most sessions need no such stubs.
        faces = import_trusted(f"{__package__}.host_stubs.return_types").ReturnTypes(self._calls)
        for offered in bound:
            self._namespace.inject(offered.name, faces.function(offered), protected=True)
        for name, error in faces.errors.items():
            self._namespace.inject(name, error, protected=True)

    def _bind(self, assign: Assign) -> None:
        value = value_transfer.read(assign, self._calls.memfd)
        self._namespace.globals[assign.name] = value
        if self._session.answers is not None and assign.name == "answer":
            self._session.answers.forget()

    def assign(self, assign: Assign) -> None:
        """Bind a variable to a value from the host."""
        try:
            self._bind(assign)
        except (MemoryError, ValueError, RecursionError, OSError) as error:
            reason = ": ".join(filter(None, (type(error).__name__, str(error))))
            self._channel.send(Failed("too large", reason))
            return
        self._changes.since_last()
        self._session.changed()
        self._channel.send(Value(b"null"))

    def fetch(self, fetch: Fetch) -> None:
        """Send the value of a variable."""
        if fetch.name not in self._namespace.globals:
            self._channel.send(value_transfer.unknown(fetch.name))
        else:
            self._channel.send(value_transfer.write(self._namespace.globals[fetch.name]))

    def list_variables(self, command: ListVariables) -> None:
        """Send the names of all variables, with a preview of each."""
        self._channel.send(Variables(tuple(self._changes.variables())))
