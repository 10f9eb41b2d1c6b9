"""`WorkerConfiguration`: the message that each worker of a session receives before any other.

The first worker receives variables with it, which then need no request of their own.
"""

from __future__ import annotations

from dataclasses import replace

from ...protocol.messages import Assign, Configure
from ...protocol.values.json_text import MAX_DEPTH, MAX_DIGITS

# Bytes of variables besides those of the template, with their names: one write to a socket.
_MAX_VARIABLES = 1 << 14
# Bytes of a variable's row in the header, besides its name, each byte of which may be an escape of
# six.
_ROW, _ESCAPE = 32, 6


class WorkerConfiguration:
    """The configuration, and whether the current worker has it."""

    def __init__(self, message: Configure, *, optional: bool) -> None:
        """`optional`: a worker works without the configuration."""
        self.message = message
        self._optional = optional
        self.is_known = False  # whether this worker has the configuration, or needs none
        self.is_unsent = True  # whether no worker has received anything so far
        self._was_sent = False  # whether a worker has received it
        self._size = 0  # bytes of the variables in it

    def add(self, variable: Assign) -> bool:
        """Have the session start with `variable`; False if it has started, or the limit is
        exceeded.

        False also for a variable that a worker might refuse: the worker has to be asked.
        """
        size = self._size + _ROW + _ESCAPE * len(variable.name.encode()) + len(variable.data)
        if not self.is_unsent or size > _MAX_VARIABLES or not _is_readable(variable):
            return False
        self._size = size
        self.message = replace(self.message, variables=(*self.message.variables, variable))
        self._optional = self.is_known = False
        return True

    def take_due(self) -> Configure | None:
        """Return the message if this worker must receive it before the next one."""
        self.is_unsent = False
        if self.is_known:
            return None
        self.is_known = True
        return None if self._optional else self.message

    def was_sent(self) -> None:
        """Note that a worker has received the message of `take_due`."""
        self._was_sent = True

    def restored(self) -> None:
        """Note that a snapshot took over: it has the configuration of its original."""
        self.is_known, self.is_unsent = True, False

    def emptied(self, *, keeps_variables: bool) -> None:
        """Note that an empty worker took over, which has no configuration.

        Variables that a worker has received are part of the namespace, and lost with it.
        """
        if self._was_sent and not keeps_variables:
            self.message = replace(self.message, variables=())
        self.is_known = self._optional


def _is_readable(variable: Assign) -> bool:
    """Return whether any worker can read the value: not JSON that may be too deep, or have too long
    a number.
    """
    data = variable.data
    return variable.kind != "json" or (
        len(data) <= MAX_DIGITS and data.count(b"[") + data.count(b"{") <= MAX_DEPTH
    )
