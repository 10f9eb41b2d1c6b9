"""Names whose references are counted in each session, made so that they lie side by side.

CPython looks an attribute up by a string that all code shares, and counts a reference to it while
it does, unless that instruction is specialised. Each was made where it was read first, among all
else that its module holds, and a session copied a page for nearly every one. `boot` has these made
before anything that uses them is imported. Which they are was found by following what a first cell
and the zygote write to; it is a matter of speed alone, and a name that is missing costs a page.
"""

from __future__ import annotations

import sys
from typing import Final

_NAMES: Final = (
    # A worker and its conversation.
    "_answers _begin _calls _cells _changes _channel _command_poller _commands _connection "
    "_copies _interrupts _is_alone _mine _namespace _obey_always _out _pid _process _reader "
    "_recv _result _session _snapshots _socket _states _streams _theirs _used answers copies "
    "end_cell ended execute hurried is_a_child measured obey page phase polls printed said "
    "send serve_on take unpack_from used waits "
    # A cell, its tree and what it came to.
    "__warningregistry__ _came _handler _seen allow arm armed body cell changes "
    "check cls co_flags col_offset ctx enable end_col_offset end_lineno eval figures "
    "future globals held hides hold identity injected int interrupted keywords kind "
    "lineno lost mark meant null peak_memory preview protected ru_maxrss sample settle "
    "shown some surrogatepass tidy type_ignores "
    # A state and its copy.
    "_page descriptor due rested states "
    # What the zygote makes for a session.
    "begin contained descriptors disable done first full gid_map jail "
    "mapped nested of pinned pipe2 revival seal setns slot st_nlink steps uid_map worker "
    "written _fill _key _be_session _be_worker _spawner _spawns _slots _spawn role "
)
# Interned as they are made, which makes them those of all code that is loaded later.
NAMES: Final = tuple(map(sys.intern, _NAMES.split()))
