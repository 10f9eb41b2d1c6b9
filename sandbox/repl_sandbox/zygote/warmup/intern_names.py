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
    "_copies _interrupts _is_alone _mine _namespace _obey_always _out _pid _process _reader "
    "_recv _result _session _snapshots _socket _states _streams _theirs _used answers copies "
    "end_cell ended execute hurried is_a_child measured obey page phase polls printed said "
    "send serve_on take unpack_from used waits "
    # A cell, its syntax tree and its result.
    "__warningregistry__ _came _handler _seen allow arm armed body cell changes "
    "check cls co_flags col_offset ctx enable end_col_offset end_lineno eval figures "
    "future globals held hides hold identity injected int interrupted keywords kind "
    "lineno lost mark meant null peak_memory preview protected ru_maxrss sample settle "
    "shown some surrogatepass tidy type_ignores "
    # A snapshot.
    "_page descriptor due rested states "
    # The zygote's objects for a session.
    "begin contained descriptors disable done first full gid_map jail "
    "mapped nested of pinned pipe2 revival seal setns slot st_nlink steps uid_map worker "
    "written _fill _key _be_session _be_worker _spawner _spawns _slots _spawn role "
)
# Interning makes them the strings of all code that is loaded later.
NAMES: Final = tuple(map(sys.intern, _NAMES.split()))
