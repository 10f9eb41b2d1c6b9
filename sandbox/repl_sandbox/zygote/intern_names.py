"""Names whose references each session counts, interned side by side.

CPython looks up an attribute by a string that all code shares, and counts a reference to it
meanwhile, unless the instruction is specialised. Each string was made where it was read first,
among the other objects of its module, and a session copied a page for nearly every one. `boot`
interns these before anything that uses them is imported. The list comes from tracing the writes of
a first cell and of the zygote; it matters for speed alone, and a missing name costs a page.
"""

from __future__ import annotations

import sys
from typing import Final

_NAMES: Final = (
    # A worker and its connection.
    "_answers _begin _calls _cells _changes _channel _command_poller _commands _connection "
    "_interrupts _is_alone _sendable _namespace _serve _out _pid _process _reader _recv _result "
    "_session _snapshot_control _socket _table _streams _receivable _used answers snapshots "
    "end_cell ended execute rapid is_forked_child measured handle_command page phase polls "
    "printed encoded send serve_prepared take unpack_from used has_input "
    # A cell, its syntax tree and its result.
    "__warningregistry__ _arrived_early _handler _seen allow arm armed body cell changes "
    "check cls co_flags col_offset ctx enable end_col_offset end_lineno eval figures future "
    "globals hides hold identity injected int interrupted keywords kind lineno lost mark "
    "target_cell null peak_memory preview protected ru_maxrss sample wait_until_detached "
    "shown some surrogatepass restore type_ignores "
    # A snapshot.
    "_page descriptor due table "
    # The zygote's objects for a session.
    "begin contained descriptors disable done first full gid_map jail mapped nested of pinned "
    "pipe2 rollback seal setns slot st_nlink steps uid_map worker written _fill _key "
    "_run_session _run_worker _spawner _session_spawn _slots _spawn role "
)
# Interning makes them the strings of all code that is loaded later.
NAMES: Final = tuple(map(sys.intern, _NAMES.split()))
