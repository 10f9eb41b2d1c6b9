"""The steps of a session's first worker as chains of calls: see `quiet_init`, and as there.

In Python each step costs some ten microseconds more, most of them for pages that are copied because
the interpreter has counted references there. What is no call, or not known when the template is
made, stays in Python, between two chains: so the order is that of the recipe.

Where nothing has to, there is one chain, which the C library goes to from that of the worker's
birth (`quiet_init`). It says that the worker is there and waits for a command (`quiet_greeting`),
so until then the worker runs no Python at all.

Covers: tier `jailed`. A step that fails is known by errno after it; the others of its chain run
all the same, but no code of a session does: `contain` raises. It does so as well if a note of errno
was not taken. After the step that closes all other descriptors, open(2) gives the lowest number
that is not kept: `free`, and while that is open `next free`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from . import contexts, landlock, membership, mounts, recipe, remedies, seccomp, users
from .calls import Calls, Row
from .forms import Form
from .libc import CLONE_NEWCGROUP, PR_CAPBSET_DROP, PR_SET_DUMPABLE, number
from .quiet_greeting import FINDINGS, Greeting
from .quiet_rows import WORD, closing, fill_in_maps, fill_in_stretches, waiting_for_maps
from .recipe import Jail, Step

_TEXT: Final = 128  # bytes for the options of a mount, of which there are some 60
_MOST_LIMITS: Final = 16  # RLIM_NLIMITS
_NO_LIMIT: Final = 1 << 63  # what setrlimit of the standard library cannot pass: off_t
_NOT_TAKEN: Final = errno.ECANCELED
_MOST_STEPS: Final = 24
# What is done besides a step only if something is so of a session; else getpid(2).
_IF_GROUPED: Final = ("unshare", "prctl", "openat", "write", "close")


@dataclass(frozen=True, slots=True)
class Facts:
    """What is the same for all sessions of a template."""

    own_ids: bool
    last_capability: int
    files: landlock.Plan
    seal: bytes
    covered: Mapping[str, str]
    saved: int  # where the process goes on that was forked, when its chain is at its end
    worker: int  # the number of its socket
    report: Callable[[Mapping[str, int]], bytes]  # of what it found, on the control socket
    ready: bytes  # what it says on its own
    unblocked: int  # a signal that tells whoever has it blocked from such a worker


class Ends(NamedTuple):
    """Descriptors of a first worker that is being made, by their numbers in the zygote."""

    control: int
    worker: int
    kept: frozenset[int]  # those that it has when it is contained


class _Limit(ctypes.Structure):
    # getrlimit(2), struct rlimit
    _fields_ = (("soft", ctypes.c_uint64), ("hard", ctypes.c_uint64))


class _Notes(ctypes.Structure):
    _fields_ = (
        ("failures", ctypes.c_int * _MOST_STEPS),  # errno after each step
        ("nothing", ctypes.c_int),  # errno where nothing has failed
        ("before_trial", ctypes.c_int),
        ("may_write", ctypes.c_int),  # errno of access(2)
        ("writes", ctypes.c_int),  # errno of open(2)
        ("init", ctypes.c_int),  # errno of init's steps, as it says
        ("findings", ctypes.c_ubyte * FINDINGS),  # all 0 if all is as it should be
        ("options", (ctypes.c_char * _TEXT) * 3),
        ("limits", _Limit * _MOST_LIMITS),
    )


def _values(jail: Jail, ends: Ends) -> dict[str, int]:
    """What numbers come to in one session, by their names in the rows."""
    free = (fd for fd in range(len(ends.kept) + 2) if fd not in ends.kept)
    grouped = jail.groups is not None
    return {
        "mapped": jail.mapped,
        "contained": jail.contained,
        "worker": ends.worker,
        "free": next(free),
        "next free": next(free),
        **{f"grouped {call}": _number_if(grouped, call) for call in _IF_GROUPED},
    }


def _number_if(does: bool, call: str) -> int:
    return number(call if does else "getpid")


class _Chained(NamedTuple):
    """Steps that follow on one another in one chain; `first` is the number of the first of them."""

    first: int
    names: Sequence[str]
    form: Form


_Rows: TypeAlias = Callable[[], Iterator[Row]]


class QuietSteps:
    """Laid out once, in a template, for the first worker of each session."""

    def __init__(self, steps: Sequence[Step], facts: Facts) -> None:
        """OSError: this C library has not what it takes, or there is too much of something."""
        if len(steps) > _MOST_STEPS:
            raise OSError(errno.E2BIG, "a worker has more steps than there is room for")
        if not any(step is recipe.keep_descriptors for _, step in steps):
            raise OSError(errno.ENOTSUP, "where others are open, no number of one is known")
        self._facts = facts
        # Whether a chain restricts files, and sees whether that holds.
        restricts = any(step is recipe.restrict_files for _, step in steps)
        self._tries = bool(restricts and facts.files.abi and facts.files.trial)
        self._notes = _Notes()
        self._notes.init = _NOT_TAKEN
        self._notes.failures[:] = [_NOT_TAKEN] * _MOST_STEPS
        self._errno = contexts.errno_at()
        held = {"landlock": facts.files.abi} if self._tries else {}
        self._greeting = Greeting(facts.worker, facts.report(held), facts.ready, self._errno)
        # 0 in a worker that is contained, has said so and was told something; in nobody else.
        self.untold = self._greeting.untold
        self._refusals = contexts.Table({errno.EACCES: 0, errno.EPERM: 0}, 1)
        self._rules = [landlock.Rule(files, -1) for _, files in facts.files.rules]
        self._program = seccomp.Program.of(facts.seal)
        self._rows: dict[object, _Rows] = {
            recipe.wait_for_maps: waiting_for_maps,
            recipe.mount_private: self._private_mounts,
            recipe.uncover: self._uncovering,
            recipe.keep_descriptors: closing,
            recipe.enter_workspace: lambda: iter([("chdir", mounts.WORKSPACE.encode())]),
            recipe.close_group_view: lambda: self._if_grouped("unshare", CLONE_NEWCGROUP),
            recipe.empty_bounding_set: self._bounding_set,
            recipe.be_first_to_go: self._first_to_go,
            recipe.limit_resources: self._limits,
            recipe.restrict_files: self._restriction,
            recipe.load_filter: self._filter,
            recipe.wait_for_init: self._wait_for_init,
        }
        self._parts = list(self._lay_out(steps))
        for form in self._forms():
            self._fill_in_constants(form)
        self._chosen: tuple[object, ...] = ()
        self.waits = False  # as `prepare` was told last

    # ── what is laid out ──────────────────────────────────────────────────────────────────────

    def _lay_out(self, steps: Sequence[Step]) -> Iterator[_Chained | Step]:
        names: list[str] = []
        rows: list[Row] = []
        first = 0
        for index, (name, step) in enumerate(steps):
            calls = self._calls(step)
            if calls is not None:
                names.append(name)
                rows += [*calls, ("memcpy", self._failure(index), self._errno, WORD)]
                continue
            if names:
                yield _Chained(first, names, self._form(rows))
            yield name, step
            names, rows, first = [], [], index + 1
        if len(names) == len(steps):
            rows = [*self._beginning(), *rows, *self._greeting.rows(self._at("findings"))]
        if names:
            yield _Chained(first, names, self._form(rows))

    def _form(self, rows: Sequence[Row]) -> Form:
        return Form(rows, self._facts.saved, 0, self._facts.unblocked)

    def _beginning(self) -> Iterator[Row]:
        # What was done until here may have left an errno where nothing has failed.
        yield "memcpy", self._errno, self._at("nothing"), WORD
        yield "syscall", number("dup3"), "worker", self._facts.worker, os.O_CLOEXEC

    def _calls(self, step: Callable[[Jail], None]) -> Sequence[Row] | None:
        """What `step` calls; None if it is not for a chain."""
        if isinstance(step, Calls):
            return step.rows if self._facts.own_ids or not step.of_own_ids else ()
        return list(self._rows[step]()) if step in self._rows else None

    def _failure(self, index: int) -> int:
        return self._at("failures") + index * WORD

    def _at(self, field: str) -> int:
        return ctypes.addressof(self._notes) + int(getattr(_Notes, field).offset)

    def _private_mounts(self) -> Iterator[Row]:
        for index, (path, _) in enumerate(mounts.private_options(0, users.CODE_ID)):
            options = self._at("options") + index * _TEXT
            yield "mount", b"tmpfs", path.encode(), b"tmpfs", mounts.PRIVATE_FLAGS, options

    def _uncovering(self) -> Iterator[Row]:
        if self._facts.covered and self._facts.own_ids:  # as `recipe.uncover`
            yield from users.BECOME_INIT.rows
        # What these open is closed with all else that the worker does not keep.
        yield from mounts.uncovering(self._facts.covered)

    def _if_grouped(self, call: str, *arguments: int | bytes | str) -> Iterator[Row]:
        # In a session without a group it is a call that does nothing.
        yield "syscall", f"grouped {call}", *arguments

    def _wait_for_init(self) -> Iterator[Row]:
        yield "read", "contained", self._at("init"), WORD
        yield "close", "contained"
        yield "memcpy", self._at("findings"), self._at("init"), 1

    def _bounding_set(self) -> Iterator[Row]:
        for capability in range(self._facts.last_capability + 1):
            yield "prctl", PR_CAPBSET_DROP, capability, 0, 0, 0

    def _first_to_go(self) -> Iterator[Row]:
        yield from self._if_grouped("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)
        how = os.O_WRONLY | os.O_CLOEXEC
        yield from self._if_grouped("openat", 0, membership.OOM_SCORE.encode(), how)
        adjustment = membership.FIRST_TO_GO
        yield from self._if_grouped("write", "free", adjustment, len(adjustment))
        yield from self._if_grouped("close", "free")

    def _limits(self) -> Iterator[Row]:
        for index in range(_MOST_LIMITS):
            at = self._at("limits") + index * ctypes.sizeof(_Limit)
            yield "setrlimit", f"limit {index}", at

    def _restriction(self) -> Iterator[Row]:
        plan = self._facts.files
        if not plan.abi:
            return
        ruleset = ctypes.addressof(plan.ruleset), ctypes.sizeof(plan.ruleset)
        yield "syscall", number("landlock_create_ruleset"), *ruleset, 0
        adding = "syscall", number("landlock_add_rule"), "free", landlock.PATH_BENEATH
        for (path, _), rule in zip(plan.rules, self._rules, strict=True):
            yield "open", path.encode(), os.O_PATH | os.O_CLOEXEC
            yield *adding, ctypes.addressof(rule), 0
            yield "close", "next free"
        yield "syscall", number("landlock_restrict_self"), "free", 0
        yield "close", "free"
        if plan.trial:
            # What it is to show is refused, and that is no failure.
            yield "memcpy", self._at("before_trial"), self._errno, WORD
            yield "access", plan.trial.encode(), os.W_OK
            yield "memcpy", self._at("may_write"), self._errno, WORD
            yield "open", plan.trial.encode(), os.O_WRONLY | os.O_CLOEXEC
            yield "memcpy", self._at("writes"), self._errno, WORD
            yield "memcpy", self._errno, self._at("before_trial"), WORD
            yield "memcpy", self._at("findings") + 1, self._at("may_write"), 1
            yield "memcpy", "refusal, at", self._at("writes"), 1
            yield "memcpy", self._at("findings") + 2, "refusal", 1

    def _filter(self) -> Iterator[Row]:
        # It returns the number of a thread that runs under other filters; there is only this one.
        mode = seccomp.SECCOMP_SET_MODE_FILTER, seccomp.SECCOMP_FILTER_FLAG_TSYNC
        yield "syscall", number("seccomp"), *mode, ctypes.addressof(self._program)

    # ── what is filled in ─────────────────────────────────────────────────────────────────────

    def _fill_in_constants(self, form: Form) -> None:
        if form.has("maps"):
            fill_in_maps(form)
        if form.has("refusal"):
            form.fill_in("refusal", self._refusals.address)
            form.fill_in("refusal, at", form.where("refusal"))
        if form.has("control"):
            self._greeting.fill_in(form)

    def prepare(self, jail: Jail, ends: Ends, *, waits: bool) -> int:
        """In the zygote: lay out what is the next session's.

        `waits`: its worker waits for a command before it runs Python.

        Returns: where the one chain begins that does all of it, 0 if there is more than one.

        Raises:
            OSError: there are more descriptors, or limits, than there is room for.
        """
        grouped = jail.groups is not None
        chosen = jail.workspace, jail.rlimits, jail.mapped, ends, grouped, waits
        if chosen == self._chosen:
            return self._first
        self._chosen = ()
        last = len(jail.rlimits) - 1
        if last >= _MOST_LIMITS:
            raise OSError(errno.E2BIG, "there is no room for so many limits")
        if not all(-1 <= value < _NO_LIMIT for _, pair in jail.rlimits for value in pair):
            raise OSError(errno.EOVERFLOW, "a limit is more than setrlimit(2) can carry")
        for index, (_, text) in enumerate(mounts.private_options(jail.workspace, users.CODE_ID)):
            self._notes.options[index].value = text.encode()
        values = _values(jail, ends)
        for rule in self._rules:
            rule.fd = values["next free"]
        # What is left of the room is the last limit once more.
        limits = [jail.rlimits[min(index, last)] for index in range(_MOST_LIMITS)]
        values |= {f"limit {index}": resource for index, (resource, _) in enumerate(limits)}
        for form in self._forms():
            if form.has("first 0"):
                fill_in_stretches(form, set(ends.kept))
            if form.has("control"):
                self._greeting.prepare(form, ends.control, waits=waits)
            for name in filter(form.has, values):
                form.fill_in(name, values[name])
        for limit, (_, pair) in zip(self._notes.limits, limits, strict=True):
            limit.soft, limit.hard = pair
        self.waits = waits
        self._chosen = chosen
        return self._first

    def has_room(self, *descriptors: int) -> bool:
        """In the zygote: whether none of these lies where the worker will have its socket."""
        return self._facts.worker not in descriptors

    @property
    def is_whole(self) -> bool:
        """Whether there is one chain that does all of it."""
        return bool(self._first)

    @property
    def _first(self) -> int:
        only, *others = self._parts
        return only.form.first if isinstance(only, _Chained) and not others else 0

    def _forms(self) -> Iterator[Form]:
        return (part.form for part in self._parts if isinstance(part, _Chained))

    # ── what happens ──────────────────────────────────────────────────────────────────────────

    def contain(self, jail: Jail) -> None:
        """In a first worker whose one chain has not said that it is there: as `recipe.contain`."""
        for part in self._parts:
            if not isinstance(part, _Chained):
                recipe.contain(jail, (part,))
                continue
            if not self._first:
                part.form.chain.run()
            self._check(part, jail.tier)
        if self._notes.init:
            signal.pause()  # it has failed, and ends when it has told the host in what; so we do
        try:
            if self._is_restricted():
                jail.held["landlock"] = self._facts.files.abi
        except OSError as error:
            raise remedies.failed("Landlock", error, jail.tier) from error

    def _check(self, part: _Chained, tier: str) -> None:
        failures = self._notes.failures[part.first : part.first + len(part.names)]
        for name, failure in zip(part.names, failures, strict=True):
            if failure:
                error = OSError(failure, os.strerror(failure))
                raise remedies.failed(name, error, tier) from error

    def _is_restricted(self) -> bool:
        """As `landlock.restrict` finds it."""
        if not self._tries or self._notes.may_write:
            return False
        return landlock.refused(self._facts.files.trial, self._notes.writes)


def prepare(steps: Sequence[Step], facts: Facts) -> QuietSteps | None:
    """None where it cannot be: then a worker does the same in Python."""
    try:
        return QuietSteps(steps, facts)
    except OSError:
        return None
