"""`WorkerConfiguration`: what each worker of a session is told before anything else.

The first worker is told variables as well, which cost no question of their own then.
"""

from __future__ import annotations

from dataclasses import replace

from ...protocol.messages import Assign, Configure
from ...protocol.values.json_text import MAX_DEPTH, MAX_DIGITS

# Bytes of variables beside those of the template, with their names: one write to a socket.
_MOST_VARIABLES = 1 << 14
# Bytes of a variable's row in the header, beside its name, each of whose bytes may be an escape of
# six.
_ROW, _ESCAPE = 32, 6


class WorkerConfiguration:
    """`message`, and whether the worker of now knows it."""

    def __init__(self, message: Configure, *, plain: bool) -> None:
        """`plain`: a worker need not be told."""
        self.message = message
        self._plain = plain
        self.known = False  # whether this worker was told, or need not be
        self.silent = True  # whether no worker was told anything so far
        self._was_sent = False  # whether a worker has got it
        self._size = 0  # bytes of variables in it

    def add(self, variable: Assign) -> bool:
        """Have the session begin with `variable`; False if it has begun, or that is too much.

        A variable that a worker might have to refuse is not taken either: the worker is asked.
        """
        size = self._size + _ROW + _ESCAPE * len(variable.name.encode()) + len(variable.data)
        if not self.silent or size > _MOST_VARIABLES or not _is_readable(variable):
            return False
        self._size = size
        self.message = replace(self.message, variables=(*self.message.variables, variable))
        self._plain = self.known = False
        return True

    def due(self) -> Configure | None:
        """The message if this worker is to be told it now, before what is said next."""
        self.silent = False
        if self.known:
            return None
        self.known = True
        return None if self._plain else self.message

    def was_sent(self) -> None:
        """A worker has got the message that was `due`."""
        self._was_sent = True

    def restored(self) -> None:
        """Another worker is there that has been told, as it is a copy of one that was."""
        self.known, self.silent = True, False

    def emptied(self, *, keeps_variables: bool) -> None:
        """Another worker is there that was told nothing.

        Variables that a worker has got are part of the namespace, and lost with it.
        """
        if self._was_sent and not keeps_variables:
            self.message = replace(self.message, variables=())
        self.known = self._plain


def _is_readable(variable: Assign) -> bool:
    """Whether any worker can read it: no JSON that may be too deep, or have too long a number."""
    data = variable.data
    return variable.kind != "json" or (
        len(data) <= MAX_DIGITS and data.count(b"[") + data.count(b"{") <= MAX_DEPTH
    )
