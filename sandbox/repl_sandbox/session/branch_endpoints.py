"""The host's ends of what connects it to a branch, before that is there."""

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
    """Its init is given one more: the table of copies.

    Raises:
        SandboxError: this process may open no more descriptors.
    """

    def __init__(self) -> None:
        try:
            super().__init__()
            self._add_table()
        except OSError as error:
            self.close()
            raise SandboxError(f"no branch could be connected: {error.strerror}") from error

    def _add_table(self) -> None:
        self.theirs.append(os.memfd_create("states", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        os.truncate(self.theirs[-1], mmap.PAGESIZE)
        # Init has it mapped, and would end by reading what code has cut off. And memory that is in
        # a file, and mapped by nobody, counts nowhere.
        fcntl.fcntl(self.theirs[-1], fcntl.F_ADD_SEALS, _ONE_PAGE)

    def links(self, parent: SessionLinks) -> SessionLinks:
        """Those of a branch of the session that `parent` connects to; they are the caller's now."""
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
