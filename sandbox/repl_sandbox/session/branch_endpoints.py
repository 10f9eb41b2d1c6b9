"""`BranchEndpoints`: the host's connections to a branch, made before the branch exists."""

from __future__ import annotations

import fcntl
import mmap
import os
from dataclasses import replace

from ..errors import SandboxError
from ..protocol.connection import HostConnection
from ..zygote.client.session_endpoints import SessionEndpoints
from ..zygote.client.session_links import SessionLinks

_ONE_PAGE = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class BranchEndpoints(SessionEndpoints):
    """`SessionEndpoints` and one descriptor more for init: the snapshot table.

    Raises:
        SandboxError: this process has no free descriptors.
    """

    def __init__(self) -> None:
        try:
            super().__init__()
            self._add_table()
        except OSError as error:
            self.close()
            raise SandboxError(f"no branch could be connected: {error.strerror}") from error

    def _add_table(self) -> None:
        self.remote.append(os.memfd_create("states", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        os.truncate(self.remote[-1], mmap.PAGESIZE)
        # Init maps the table, and would die of a bus error if code truncated the file. Besides, the
        # memory of a file that no process maps counts for no session.
        fcntl.fcntl(self.remote[-1], fcntl.F_ADD_SEALS, _ONE_PAGE)

    def links(self, parent: SessionLinks) -> SessionLinks:
        """Return the links of a branch of the session that `parent` connects to; the caller owns
        them.
        """
        control, worker, stdout, stderr = self.take()
        return replace(
            parent,
            worker_pid=0,
            control=control,
            worker=worker,
            stdout=stdout,
            stderr=stderr,
            connection=HostConnection(),
        )
