"""Making and loading checkpoints: work of ours that a session does, held as a cell is held.

Pickles travel in files in memory that the host made. The one to write has its full size from the
start and is sealed against growing, so no session makes the host hold more; once it is read, it is
emptied, whoever has it open.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from ..errors import CheckpointError, RemoteProtocolError
from ..protocol import checkpoint_manifest
from ..protocol.checkpoint_manifest import Checkpoint, Manifest
from ..protocol.messages import HostMessage, Load, Save
from ..protocol.values.json_text import parse_json
from ..types import AnyOutcome, Finished, Killed, Missing, Raised, TimedOut
from .core import Core
from .session_operations import memfd

# What the host holds for a checkpoint: twice this while it is put together. It is as much as the
# files of a session may be by default, where the same data would be kept otherwise.
DEFAULT_LIMIT = "256MiB"


@dataclass(frozen=True, slots=True)
class Draft:
    """A checkpoint whose pickles are still in the file that the session wrote."""

    manifest: Manifest
    fd: int

    def finish(self) -> bytes:
        """The checkpoint; the file is gone afterwards.

        Raises:
            CheckpointError: the file is shorter than the session said, or there are too many names.
        """
        size = self.manifest.size
        try:
            with open(self.fd, "rb", closefd=False) as file:
                file.seek(0)  # where it stands is shared with the session
                payload = file.read(size)
        finally:
            _drop(self.fd)
        if len(payload) != size:
            raise CheckpointError("the session's report does not fit what it saved")
        return checkpoint_manifest.pack(self.manifest, payload)


def saving(core: Core, most: int, timeout: float) -> Generator[float, Any, Draft]:
    """Have the session pickle its variables, into at most `most` bytes."""
    fd = _writable(most)
    try:
        outcome = yield from _carry_out(core, lambda cell: Save(cell, most), fd, most, timeout)
        text = _value(outcome)
        if outcome.state == "restarted":
            raise CheckpointError("the session's process had died, and its namespace with it")
        python, implementation = core.links.interpreter
        told = {"python": python, "implementation": implementation, "cell": core.cell}
        manifest = checkpoint_manifest.report(text, **told)  # type: ignore[arg-type]
        if manifest.size > most:
            raise CheckpointError("the session's report tells of more than there is room for")
        return Draft(manifest, fd)
    except BaseException:
        _drop(fd)
        raise


def loading(
    core: Core, saved: Checkpoint, timeout: float
) -> Generator[float, Any, tuple[Missing, ...]]:
    """Have the session load a checkpoint; what it has not afterwards."""
    fd, size = memfd(bytes(saved.payload))
    manifest = checkpoint_manifest.dump(saved.manifest)
    try:
        outcome = yield from _carry_out(core, lambda cell: Load(cell, manifest), fd, size, timeout)
    finally:
        os.close(fd)
    try:
        lost = checkpoint_manifest.missing_of(parse_json(_value(outcome).encode()))
    except (TypeError, ValueError, RemoteProtocolError) as error:
        message = f"the session's report of what it loaded is malformed: {error}"
        raise CheckpointError(message) from None
    # Functions keep the numbers of their cells, and no other cell may be taken for one of those.
    core.running.number = saved.manifest.cell
    return saved.manifest.missing + lost


def _writable(size: int) -> int:
    """A descriptor of a file in memory that is full of holes and cannot grow."""
    fd = os.memfd_create("checkpoint", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    # Not against shrinking: the host frees it so.
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return fd


def _drop(fd: int) -> None:
    """Close such a file and free it: a session may have it open or mapped, but it cannot grow."""
    os.ftruncate(fd, 0)
    os.close(fd)


def _carry_out(
    core: Core, message: Callable[[int], HostMessage], fd: int, size: int, timeout: float
) -> Generator[float, Any, AnyOutcome]:
    core.cells.begin_job(message, fd, timeout)
    # No more than its own memory over again, whatever the caller lets a checkpoint have.
    core.lent = min(size, int(core.limits.memory))
    try:
        return (yield from core.cells.run())
    finally:
        core.lent = 0
        core.io.withdraw()


def _value(outcome: AnyOutcome) -> str:
    """What the session reported; CheckpointError if it came to something else."""
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


_LONGEST = 2000  # characters of the session's words
