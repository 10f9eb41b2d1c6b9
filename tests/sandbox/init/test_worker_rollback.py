"""Processes that init trusts, none of them snapshots: known by process ids, which are reused."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Like an init: a separate process with children. Prints the processes that it counts as its own at
# the end.
INIT = """
import os, signal, sys
from repl_sandbox.jail import processes
from repl_sandbox.jail.steps import Jail
from repl_sandbox.worker.snapshot_table import SnapshotTable
from repl_sandbox.init.branch import SessionBranch
from repl_sandbox.init.snapshot_channel import SnapshotChannel
from repl_sandbox.init.rollback import WorkerRollback

jail = Jail(None, 0, [], 0, b"", (), "confined", snapshots=1)
jail.folder = "/nowhere"
rollback = WorkerRollback(jail, 200, SnapshotTable(), SnapshotChannel(200))

def fork(own):
    pid = os.fork()
    if not pid:
        processes.die_with_parent()
        signal.pause()
    if own:
        rollback.trusted.add(pid)
    return pid

file_helper, snapshot_helper, snapshot = fork(True), fork(True), fork(False)
if sys.argv[1] == "replaced":
    rollback.files._helper = snapshot_helper, None
    rollback._end_all({snapshot}, 0)
    rollback.files._helper = None
    assert rollback.trusted == {snapshot_helper}, (rollback.trusted, snapshot_helper)
    rollback.table.write([(snapshot, 1)])
    assert rollback.rows() == [(snapshot, 1)]
else:
    SessionBranch(None, jail, 0, 0, rollback.table, rollback).kill_all()
    assert rollback.trusted == set()
rollback._end_all(set(), 0)
print("well", rollback.trusted)
"""


@pytest.mark.parametrize("how", ["replaced", "all ended"])
def test_a_reaped_process_is_not_mistaken_for_a_child_of_init(how: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", INIT, how], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout == "well set()\n", ran.stderr
