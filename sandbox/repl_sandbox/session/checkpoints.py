"""Jobs that save and load checkpoints; they run in the session like cells.

The pickles are written to files in memory that the host makes. A file for saving has its full size
from the start and is sealed against growing, so a session cannot make the host hold more; after
reading, the host truncates it, whoever has it open.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from ..errors import CheckpointError, RemoteProtocolError
from ..protocol import checkpoints
from ..protocol.checkpoints import Checkpoint, Manifest
from ..protocol.messages import HostMessage, Load, Save
from ..protocol.values import parse_json
from ..types import AnyOutcome, Finished, Killed, Missing, Raised, TimedOut
from .core import Core, memfd

# The maximum size of a checkpoint; the host holds twice this while it assembles one. The files of a
# session have the same default limit.
DEFAULT_LIMIT = "256MiB"


@dataclass(frozen=True, slots=True)
class Draft:
    """A checkpoint whose pickles are still in the file that the session wrote."""

    manifest: Manifest
    fd: int

    def finish(self) -> bytes:
        """Return the checkpoint; the file is closed.

        Raises:
            CheckpointError: the file is shorter than the session reported, or there are too many
                names.
        """
        size = self.manifest.size
        try:
            with open(self.fd, "rb", closefd=False) as file:
                file.seek(0)  # the session shares the file position
                payload = file.read(size)
        finally:
            _drop(self.fd)
        if len(payload) != size:
            raise CheckpointError("the session's report does not fit what it saved")
        return checkpoints.pack_checkpoint(self.manifest, payload)


def saving(core: Core, limit: int, timeout: float) -> Generator[float, Any, Draft]:
    """Have the session pickle its variables, into at most `limit` bytes."""
    fd = _writable(limit)
    try:
        outcome = yield from _carry_out(core, lambda cell: Save(cell, limit), fd, limit, timeout)
        text = _value(outcome)
        if outcome.state == "restarted":
            raise CheckpointError("the session's process had died, and its namespace with it")
        python, implementation = core.links.interpreter
        facts = {"python": python, "implementation": implementation, "cell": core.cell}
        manifest = checkpoints.report(text, **facts)  # type: ignore[arg-type]
        if manifest.size > limit:
            raise CheckpointError("the session's report tells of more than there is room for")
        return Draft(manifest, fd)
    except BaseException:
        _drop(fd)
        raise


def loading(
    core: Core, saved: Checkpoint, timeout: float
) -> Generator[float, Any, tuple[Missing, ...]]:
    """Have the session load a checkpoint; return the variables that did not load."""
    fd, size = memfd(bytes(saved.payload))
    manifest = checkpoints.dump(saved.manifest)
    try:
        outcome = yield from _carry_out(core, lambda cell: Load(cell, manifest), fd, size, timeout)
    finally:
        os.close(fd)
    try:
        lost = checkpoints.missing_of(parse_json(_value(outcome).encode()))
    except (TypeError, ValueError, RemoteProtocolError) as error:
        message = f"the session's report of what it loaded is malformed: {error}"
        raise CheckpointError(message) from None
    # Functions keep the numbers of their cells, which no new cell may reuse.
    core.running.number = saved.manifest.cell
    return saved.manifest.missing + lost


def _writable(size: int) -> int:
    """Return the descriptor of a sparse file in memory that cannot grow."""
    fd = os.memfd_create("checkpoint", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    # Not sealed against shrinking: the host truncates the file to free it.
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return fd


def _drop(fd: int) -> None:
    """Truncate and close such a file: a session may have it open or mapped, but cannot grow it."""
    os.ftruncate(fd, 0)
    os.close(fd)


def _carry_out(
    core: Core, message: Callable[[int], HostMessage], fd: int, size: int, timeout: float
) -> Generator[float, Any, AnyOutcome]:
    core.cells.begin_job(message, fd, timeout)
    # At most the session's memory limit, however large a checkpoint the caller allows.
    core.mapped_bytes = min(size, int(core.limits.memory))
    try:
        return (yield from core.cells.run())
    finally:
        core.mapped_bytes = 0
        core.io.withdraw()


def _value(outcome: AnyOutcome) -> str:
    """Return the session's report; raise CheckpointError for any other outcome."""
    match outcome:
        case Finished(value=str(value)):
            return value
        case Raised(error=error) if error is not None:
            kind = "" if error.type.endswith("CheckpointError") else f"{error.type}: "
            raise CheckpointError(f"{kind}{error.message}"[:_LONGEST])
        case TimedOut(state=state):
            raise CheckpointError(f"it did not end within its time; the namespace: {state}")
        case Killed(reason=reason, state=state):
            raise CheckpointError(f"the session's process ended: {reason}; the namespace: {state}")
    raise CheckpointError("the session reported nothing")


_LONGEST = 2000  # characters of the session's message
