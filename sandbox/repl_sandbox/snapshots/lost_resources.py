"""`LostResources`: what a snapshot lacks: threads, child processes, tasks, timers, open
descriptors.

Noted when the snapshot is made, reported when it takes over. Memory is copied, and with it the
objects that stand for lost resources. The objects of child processes are updated as if the process
had died by the signal that killed it; thread pools start new threads. A lock that a thread held
stays locked.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from signal import ITIMER_PROF, ITIMER_REAL, ITIMER_VIRTUAL, SIGKILL, getitimer, set_wakeup_fd
from typing import Any

from ..worker.cell import top_level_await
from ..worker.namespace.main_namespace import Namespace
from ..worker.namespace.trusted_imports import import_trusted, loaded, loaded_class
from .descriptors import open_descriptors, placeholder_descriptors
from .descriptors.descriptor_holders import holders
from .descriptors.open_descriptors import RestoredDirectory

# So many of each kind are named, the rest counted.
_MAX_NAMED = 20
_LONGEST = 100  # characters of a variable's name
# Classes of child process objects, and the attribute that holds the exit status.
_PROCESSES = (("subprocess", "Popen"), ("multiprocessing.popen_fork", "Popen"))
# Descriptors of a process that has taken over: standard streams, two sockets, and one for opening
# files.
_NEEDED = 6
_get_objects = gc.get_objects
_TIMERS = ((ITIMER_REAL, "real"), (ITIMER_VIRTUAL, "virtual"), (ITIMER_PROF, "profiling"))


@dataclass(slots=True)
class LostResources:
    """The losses of a snapshot made now."""

    descriptors: list[open_descriptors.OpenDescriptor]
    names: list[str] = field(default_factory=list)
    generator: object = None  # state of `random`, which a fork of a process with threads reseeds

    def fits(self, numbers: int, limit: int, reserved: int) -> bool:
        """Return whether a snapshot can take over: with `limit` numbers for descriptors, as many as
        `reserved` of which have placeholders already, and the code with `numbers` of them.

        A quarter of these is not for lost descriptors: the code will open files again.
        """
        lost = reserved + sum(not descriptor.reopens for descriptor in self.descriptors)
        return (
            lost <= numbers - numbers // 4 and _NEEDED + reserved + len(self.descriptors) <= limit
        )

    def release(self) -> None:
        """In the snapshot: close everything that others could notice."""
        for descriptor in self.descriptors:
            descriptor.release()

    def predict(self, namespace: Namespace) -> list[str] | None:
        """Return the names that `restore` will report in a snapshot made now; None if only that
        can tell.
        """
        if self.descriptors or namespace.loop is not None:
            return None
        try:
            os.getcwd()
        except OSError:
            return None
        ended = [name for _, name in _children()]
        return [*self.names, *_shorten(ended, "child processes")]

    def restore(
        self, namespace: Namespace, directory: RestoredDirectory, reserved: set[int]
    ) -> tuple[list[str], set[int]]:
        """In the snapshot that takes over: open files again; return the names of all losses.

        And the numbers that placeholders keep from here on, those that were `reserved` before among
        them.

        Raises:
            OSError: they cannot be kept.
        """
        lost = {
            descriptor.fd: descriptor.name
            for descriptor in self.descriptors
            if not descriptor.reopens
        }
        placeholder_descriptors.place({*reserved, *lost})
        for descriptor in self.descriptors:
            if descriptor.reopens and (name := descriptor.reopen(directory)):
                lost[descriptor.fd] = name
                placeholder_descriptors.place([descriptor.fd])
        reserved = {*reserved, *lost}
        if (wakeup := set_wakeup_fd(-1)) not in lost:
            with suppress(OSError, ValueError):  # it was closed, or is of another kind by now
                set_wakeup_fd(wakeup)
        for fd in _loop_descriptors(namespace.loop):  # no loss: it is replaced
            lost.pop(fd, None)
        names = _named(lost, namespace)
        try:
            os.getcwd()
        except OSError:
            os.chdir(os.environ.get("HOME", directory.workspace))
            names.append("the working directory, which is gone")
        names += [*self.names, *_shorten(_end_children(), "child processes")]
        _reset_thread_pools()
        if namespace.loop is not None:
            names += _shorten(top_level_await.replace_loop(namespace), "tasks")
        if self.generator is not None:
            import_trusted("random").setstate(self.generator)
        return names, placeholder_descriptors.placed(reserved)


def find(own: Collection[int], *, threads: bool) -> LostResources:
    """Return the resources of this process; `import_trusted` are the worker's descriptors, not the
    session's.
    """
    found = LostResources(open_descriptors.find_open(own))
    if threads:
        found.names += _shorten(_threads(), "threads")
        random = loaded("random")
        if random is not None:
            found.generator = random.getstate()
    for timer, name in _TIMERS:
        if getitimer(timer)[0]:
            found.names.append(f"the {name} timer")
    return found


def _shorten(names: list[str], noun: str) -> list[str]:
    more = len(names) - _MAX_NAMED
    return names if more <= 0 else [*names[:_MAX_NAMED], f"{more:,} more {noun}"]


def _named(lost: dict[int, str], namespace: Namespace) -> list[str]:
    """The names of lost descriptors, with the variables that hold their objects.

    And the name of one that holds the event loop which is to be replaced.
    """
    if not lost and namespace.loop is None:
        return []
    held, of_loop = holders(namespace.variables(), set(lost), namespace.loop)
    names = [
        f"{lost[fd]}, which {held[fd][:_LONGEST]!a} holds" if fd in held else lost[fd]
        for fd in sorted(lost)
    ]
    names = _shorten(names, "descriptors")
    if of_loop:
        names.append(
            f"the event loop that {of_loop[:_LONGEST]!a} holds, which is closed: there is another"
        )
    return names


def _threads() -> list[str]:
    threading = loaded("threading")
    if threading is None:
        return ["threads of C code"]
    main = threading.main_thread()
    return [f"thread {t.name!a}" for t in threading.enumerate() if t is not main]


def _end_children() -> list[str]:
    """Set the exit status of child process objects, which would otherwise find no process."""
    ended = []
    for found, name in _children():
        found.__dict__["returncode"] = -SIGKILL
        ended.append(name)
    _adopt_processes()
    return ended


def _children() -> list[tuple[Any, str]]:
    """The objects of living child processes, and their names."""
    kinds = tuple(kind for names in _PROCESSES if (kind := loaded_class(*names)))
    return [
        (found, f"child process {found.__dict__.get('pid')}, which was ended")
        for found in (_get_objects() if kinds else ())
        if issubclass(type(found), kinds) and found.__dict__.get("returncode", 0) is None
    ]


def _adopt_processes() -> None:
    """Let objects of multiprocessing be queried, which only answer the process that made them."""
    kind = loaded_class("multiprocessing.process", "BaseProcess")
    if kind is None:
        return
    own_pid = os.getpid()
    for found in _get_objects():
        if issubclass(type(found), kind) and found.__dict__.get("_popen") is not None:
            found.__dict__["_parent_pid"] = own_pid


def _reset_thread_pools() -> None:
    """Let thread pools start threads: those that they count as idle are gone."""
    kind = loaded_class("concurrent.futures.thread", "ThreadPoolExecutor")
    semaphore = loaded_class("threading", "Semaphore")
    if kind is None or semaphore is None:
        return
    for found in _get_objects():
        if issubclass(type(found), kind):
            found.__dict__["_threads"] = set()
            found.__dict__["_idle_semaphore"] = semaphore(0)


def _loop_descriptors(loop: Any) -> set[int]:
    """The descriptors of the loop itself."""
    numbers: set[int] = set()
    if loop is None:
        return numbers
    for name in ("_selector", "_ssock", "_csock"):
        with suppress(AttributeError, OSError, ValueError):  # none, or closed
            numbers.add(getattr(loop, name).fileno())
    return numbers
