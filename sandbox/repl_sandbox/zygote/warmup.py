"""Work that each session would do first, done once in the template, whose pages sessions share."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import os
import resource
import socket
import sys
from _signal import SIG_BLOCK, SIG_SETMASK, pthread_sigmask, sigwait
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from errno import EAGAIN
from functools import partial
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from ..init.main import Init
from ..init.rollback import WorkerRollback
from ..init.snapshot_channel import SnapshotChannel
from ..jail.reserved_descriptors import MIN_FILES, WORKER
from ..jail.steps import Jail, contain
from ..protocol.connection import HostConnection
from ..protocol.control import COMMAND, WAKE_SIGNAL
from ..protocol.messages import Assign, Configure, Execute, FunctionSchema, HostMessage
from ..worker import namespace
from ..worker.branch import BranchFork
from ..worker.main import Worker
from ..worker.snapshot_table import SnapshotTable

if TYPE_CHECKING:
    from ..policies.rules import PolicyRules


# `compact_heap`: new objects are allocated side by side, in fresh pools, and not in scattered
# holes.
#
# CPython's object allocator uses the first hole of a size (Objects/obmalloc.c). After the imports
# of a template the holes are everywhere, and the objects that a session makes and frees in a cell
# lie on some sixty pages, each of which it copies. With the holes taken they lie in new pools,
# one for each size.

# For all versions from 3.10 on: POOL_SIZE, POOL_OVERHEAD, ALIGNMENT, SMALL_REQUEST_THRESHOLD.
_POOL, _HEAD = 1 << 14, 48
_STEP, _LARGEST = 16, 512
# The overhead of a `bytes`, one byte of it for the NUL.
_BYTES = sys.getsizeof(b"")
# The size of an `int`, 28 bytes and more.
_NUMBER = 2 * _STEP
# The maximum number of holes of one size. If no new pool comes after these, as in builds without
# this allocator, there are no holes to fill.
_MAX_HOLES = 1 << 14
# Adjacent objects by which a new pool is recognised: its first place alone may be a hole of
# another.
_IN_A_ROW = 3


def compact_heap() -> list[object]:
    """Take each free place in pools that hold something; they are freed with the returned list.

    It is half a MB of a template's memory, which its sessions share.
    """
    filled: list[object] = []
    for size in range(_STEP, _LARGEST + 1, _STEP):
        holes = _holes(size)
        if holes is None:
            return []
        filled += holes
    return filled


def _holes(size: int) -> list[object] | None:
    """Objects of `size` bytes in all holes of that size; None if the holes do not end."""
    make, row = _maker(size), 0
    # The integers that are compared here are allocated between the objects of that size.
    in_a_row = 1 if size == _NUMBER else _IN_A_ROW
    objects: list[object] = []
    for _ in range(_MAX_HOLES):
        block = make()
        objects.append(block)
        row = row + 1 if id(block) % _POOL == _HEAD + row * size else 0
        if row == in_a_row:
            del objects[-in_a_row:]
            return objects
    return None


def _maker(size: int) -> Callable[[], object]:
    """Return a function that allocates objects of `size` bytes, which nothing else reuses when
    freed.
    """
    if size == _STEP:
        return object
    if size == _NUMBER:
        return partial(complex, 1.0)
    return partial(bytes, size - _BYTES)


# Immortal objects (PEP 683): sessions use the template's objects without writing to them.
#
# CPython keeps an object's reference count in the object. So a session that only reads an object
# shared with its template writes to it, and copies its page. Since CPython 3.12 an object is
# immortal by the value of that count, which then never changes.

# Builds without the GIL have another layout, and each object has an owning thread.
_KNOWN = (
    sys.implementation.name == "cpython" and sys.version_info >= (3, 12) and "t" not in sys.abiflags
)
# The counts of immortal objects: in all versions the sign bit of 32 bits marks them.
_IMMORTAL = 1 << 31
# All addresses that Linux gives a process by default, of 47 bits on x86-64 and of 48 on aarch64, in
# counts of 4 bytes.
_COUNTS = 1 << 46
# Since 3.14 there are flags in the upper half of the next 4 bytes, `ob_flags`, and the first marks
# it too: by it the interpreter decides whether to decrement the count.
_FLAG = 1 << 16 if sys.version_info >= (3, 14) else 0


def immortalise() -> None:
    """Make the objects of this process immortal that the garbage collector can reach.

    They are never freed, nor what they refer to, so collect garbage before. Does nothing in
    versions without immortal objects.
    """
    if not _KNOWN:
        return
    counts = (ctypes.c_uint32 * _COUNTS).from_address(0)
    immortal = counts[id(None) >> 2]
    found: Sequence[Any] = gc.get_objects()
    while found:
        mortal = []
        for each in found:
            place = id(each) >> 2
            # A frame may belong to a call that has yet to return and free its locals.
            if counts[place] < _IMMORTAL and type(each) is not FrameType:
                counts[place] = immortal
                if _FLAG:
                    counts[place + 1] |= _FLAG
                mortal.append(each)
        found = [*gc.get_referents(*mortal), *_unseen(mortal)]


def _unseen(objects: Iterable[Any]) -> Iterator[Any]:
    """Objects that `objects` refer to and that the collector, which looks for cycles, does not
    track.
    """
    for each in objects:
        if issubclass(type(each), dict):  # without an attribute of `each`, which may be a proxy
            yield from dict.keys(each)
        elif type(each) is CodeType:
            yield from (each.co_consts, *each.co_consts, each.co_names, *each.co_names)
            yield from (each.co_filename, each.co_name, each.co_qualname)


# `warm_up_init`: runs init's code in the template, so that no session is the first to run it.
#
# For the reason of `warm_up_worker`, and likewise with results that are dropped. Only code that
# leaves this process unchanged can run, so no step of the jail.

# CPython 3.11 specialises at the 8th run, later versions earlier.
_RUNS = 16


def warm_up_init(jail: Jail, template: Worker) -> None:
    """Make inits without a session, as `SessionSpawn` does, and have them poll once.

    Also have its worker do what precedes a snapshot, and what a snapshot does when it is activated.
    `template`: a worker, of no use then.
    """
    gc.freeze()  # a snapshot that takes over searches all objects, of which none is its own here
    with _few_descriptors():
        for _ in range(_RUNS):
            _once(jail, template)
    gc.unfreeze()


def _once(jail: Jail, template: Worker) -> None:
    contain(jail, ())
    table = SnapshotTable()
    rollback = WorkerRollback(jail, WORKER, table, SnapshotChannel(WORKER))
    resources = replace(rollback.resources(), fork_beside=_no_fork)
    snapshots = BranchFork(resources, WORKER)
    if jail.tier == "jailed":  # else there is no workspace yet
        snapshots.warm_up(_open())
        _branch(snapshots, rollback, resources.workspace, template)
    _take_over(snapshots, rollback, template)
    control = os.eventfd(0)
    init = Init(jail, control, template, 0, table, rollback)
    init.handle_input({fd for fd, _ in init.poller().poll(0)})
    init.close()
    rollback.close()
    os.close(control)


def _branch(
    snapshots: BranchFork, rollback: WorkerRollback, workspace: str, worker: Worker
) -> None:
    """Have `worker` do everything for a branch but the fork, with an empty workspace."""
    place = os.fsencode(workspace)
    command = COMMAND.pack(os.getpid(), 0, -1, len(place)) + place
    rollback.channel.send_command(command, [0, 0, 0, 0, 0])
    worker.warm_up_branch(snapshots)
    rollback.channel.next_message(0)


def _take_over(snapshots: BranchFork, rollback: WorkerRollback, worker: Worker) -> None:
    """Have `worker` take over as an activated snapshot does."""
    host, worker_end = socket.socketpair()
    rollback.channel.send_command(COMMAND.pack(os.getpid(), 0, -1, 0), [worker_end.fileno()])
    worker_end.close()
    worker.warm_up_takeover(snapshots)
    host.close()


def _no_fork() -> int:
    raise OSError(EAGAIN, "a warm-up")


@contextlib.contextmanager
def _few_descriptors() -> Iterator[None]:
    """Lower the limit of descriptors as in a session: a snapshot's sockets have the highest
    numbers.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (MIN_FILES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _open() -> list[int]:
    """The descriptors of this process, except the one by which they are found."""
    numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    return [fd for fd in numbers if os.path.exists(f"/proc/self/fd/{fd}")]


# `warm_up_worker`: runs the worker's code in the template, so that no session is the first to run
# it.
#
# CPython specialises code in place as it runs (PEP 659), and fills caches. Done here once, all
# sessions share it; done in a session, it copies the pages.

# CPython 3.11 specialises at the 8th run, later versions earlier.
_CELLS = ("1 + 1", "x = 1", "print('', end='')", "x", "new_{} = 1")
_CONFIGURE = Configure((FunctionSchema("ask"),), None, "compatible", (Assign("x", "str", b""),))
_READ = 1 << 16


def warm_up_worker(rules: PolicyRules | None = None) -> None:
    """Have a temporary worker run some cells, first without and then with answers."""
    host_end, worker_end = socket.socketpair()
    host = HostConnection()
    worker, table = Worker(rules), SnapshotTable()
    with host_end:
        number = worker_end.detach()
        # As in a session: code is specialised for objects with the same attributes.
        worker.join_session(number, table, None)
        worker.open(number)
        list(host.receive(host_end.recv(_READ)))

        def ask(message: HostMessage) -> None:
            host_end.sendall(host.send(message))
            worker.handle_command()
            list(host.receive(host_end.recv(_READ)))

        cells = itertools.count(1)
        for run in range(_RUNS):
            for code in _CELLS:
                ask(Execute(next(cells), code.format(run).encode()))
        for _ in range(_RUNS):
            host_end.sendall(host.send(_CONFIGURE))  # which is not answered
            worker.handle_command()
            ask(Assign("x", "str", b""))
            ask(Execute(next(cells), b"x"))
    for _ in range(_RUNS):  # the host has left
        worker.serve_prepared()
    worker.close()
    table.close()
    namespace.forget_cells()
    _wait_for_a_signal()


def _wait_for_a_signal() -> None:
    """Wait for a signal as each snapshot does: the first call resolves the function in all
    libraries.
    """
    before = pthread_sigmask(SIG_BLOCK, (WAKE_SIGNAL,))
    os.kill(os.getpid(), WAKE_SIGNAL)
    sigwait((WAKE_SIGNAL,))
    pthread_sigmask(SIG_SETMASK, before)
