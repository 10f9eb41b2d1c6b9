"""System-call filters of a session, compiled from the rows of `syscalls`.

Covers: system calls by number and by the arguments in registers; foreign entries (i386, x32), which
end the process. Does not cover: data behind a pointer, such as paths (see the mounts), and
`no_new_privs`, which comes before `load`.

Two ways lead to the same result:

- `program`, loaded by a session as its last step; - `base_program`, loaded once by a trusted parent
and inherited by fork, and `final_program`, loaded by a session as its last step. The base leaves
open the calls that build a session (`SETUP`), and the final filter closes exactly those. Loading
costs in proportion to length, and the final filter is short. The final filter alone is no
protection.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from errno import ENOSYS, ENOTSUP
from functools import cache
from itertools import groupby
from typing import Final, TypeAlias

from ...native.libc import NativeCall, call
from ...native.steps import Rows, perform
from .bpf import (
    ARCH_OFFSET,
    INSTRUCTION,
    JEQ,
    JSET,
    NUMBER_OFFSET,
    Assembler,
    Label,
    Span,
    add_search,
    argument_offset,
    fewest_comparisons,
)
from .syscalls import (
    ALLOW,
    CONFINED,
    REFUSE,
    RULES,
    SETUP,
    Arch,
    Check,
    NoBits,
    NoneOf,
    OneOf,
    Refuse,
    Rule,
    Tier,
    Within,
)

# uapi/linux/seccomp.h
SECCOMP_SET_MODE_FILTER: Final = 1
SECCOMP_FILTER_FLAG_TSYNC: Final = 1
SECCOMP_RET_KILL_PROCESS: Final = 0x80000000
SECCOMP_RET_ERRNO: Final = 0x00050000
SECCOMP_RET_ALLOW: Final = 0x7FFF0000

# uapi/linux/audit.h: the machine, 64 bits, little-endian
_AUDIT_ARCH: Final[dict[Arch, int]] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# x86/include/uapi/asm/unistd.h, __X32_SYSCALL_BIT: from here on, numbers are those of the x32 ABI,
# which shares its audit number with x86-64.
_X32_NUMBERS: Final = 0x40000000
_NUMBERS_END: Final = 1 << 32  # the filter sees numbers as unsigned 32-bit words

# Verdict on a call: an action of seccomp, or a rule that chooses between two by arguments.
Verdict: TypeAlias = int | Rule
Accepted: TypeAlias = tuple[Verdict, ...]

_UNKNOWN: Final = SECCOMP_RET_ERRNO | ENOSYS


class Program(ctypes.Structure):
    """struct sock_fprog."""

    # A buffer made for each program would also work, but costs a session 0.1 ms: ctypes makes a
    # class for every length.
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_char_p)]

    @classmethod
    def of(cls, instructions: bytes) -> Program:
        """Return the program with these instructions."""
        return cls(len(instructions) // INSTRUCTION.size, instructions)


call_seccomp: Final = NativeCall("seccomp", ctypes.c_uint, ctypes.c_uint, ctypes.c_void_p)


def native_arch() -> Arch:
    """Return the architecture of this machine; OSError (ENOTSUP) if there is no table for it."""
    machine = os.uname().machine
    for arch in _AUDIT_ARCH:
        if arch == machine:
            return arch
    raise OSError(ENOTSUP, f"no system-call table for {machine}")


def audit_arch() -> int:
    """Return the audit number of native system calls; OSError as of `native_arch`."""
    return _AUDIT_ARCH[native_arch()]


@cache
def program(arch: Arch, tier: Tier = "jailed") -> bytes:
    """Return the whole filter. ValueError for an unknown `arch`."""
    strict = _verdicts(arch, tier)
    return _build(arch, lambda n: (strict.get(n, _UNKNOWN),), foreign=SECCOMP_RET_KILL_PROCESS)


@cache
def base_program(arch: Arch, tier: Tier = "jailed") -> bytes:
    """Return the filter that leaves `SETUP` open. ValueError for an unknown `arch`."""
    base = _verdicts(arch, tier, setup=True)
    return _build(arch, lambda n: (base.get(n, _UNKNOWN),), foreign=SECCOMP_RET_KILL_PROCESS)


@cache
def final_program(arch: Arch, tier: Tier = "jailed") -> bytes:
    """Return the filter that completes `base_program`. ValueError for an unknown `arch`.

    The kernel runs all filters and takes the strictest action, at equal actions that of the filter
    loaded last. So the final filter may repeat a refusal of the base or leave it to the base,
    whichever is shorter; foreign entries it leaves to the base.
    """
    strict, base = _verdicts(arch, tier), _verdicts(arch, tier, setup=True)

    def accepted(n: int) -> Accepted:
        verdict = strict.get(n, _UNKNOWN)
        if verdict != base.get(n, _UNKNOWN):
            return (verdict,)
        if isinstance(verdict, Rule) or verdict == SECCOMP_RET_ALLOW:
            return (SECCOMP_RET_ALLOW,)
        return (SECCOMP_RET_ALLOW, verdict)

    return _build(arch, accepted, foreign=None)


def load_rows(program: bytes) -> Rows:
    """Return the rows that put all threads of this process under `program`, for good: seccomp(2).

    Needs `no_new_privs` or CAP_SYS_ADMIN. Fails if a thread runs under other filters.
    """
    fprog = Program.of(program)
    mode = SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC
    yield call("seccomp", *mode, fprog, exactly=True, reason="a thread runs under other filters")


def load(program: bytes) -> None:
    """Put this process under `program` by `load_rows`."""
    perform(load_rows(program))


def _verdicts(arch: Arch, tier: Tier, *, setup: bool = False) -> dict[int, Verdict]:
    """Return the verdict on each number with a row; with `setup`, calls in `SETUP` are allowed."""
    if arch not in _AUDIT_ARCH:
        raise ValueError(f"arch={arch!r} is none of {', '.join(_AUDIT_ARCH)}")
    by_name: dict[str, Verdict] = {row.name: SECCOMP_RET_ALLOW for row in ALLOW}
    by_name |= {row.name: _refusal(row) for row in REFUSE}
    by_name |= {rule.call: rule for rule in RULES}
    for row in CONFINED if tier == "confined" else ():
        by_name |= {row.call: row} if isinstance(row, Rule) else {row.name: _refusal(row)}
    if setup:
        by_name |= {row.call: SECCOMP_RET_ALLOW for row in SETUP if tier in row.tiers}
    numbers = ((row.number(arch), row.name) for row in (*ALLOW, *REFUSE))
    return {n: by_name[name] for n, name in numbers if n is not None}


def _refusal(row: Refuse) -> int:
    return SECCOMP_RET_ERRNO | row.errno


def _build(arch: Arch, accepted: Callable[[int], Accepted], *, foreign: int | None) -> bytes:
    """Return a filter that gives each number one of the verdicts `accepted` for it.

    Entries of foreign architectures get the action `foreign`; None: they are not checked.
    """
    has_x32 = foreign is not None and arch == "x86_64"
    spans = _spans(
        accepted, max(_verdicts(arch, "jailed")) + 1, _X32_NUMBERS if has_x32 else _NUMBERS_END
    )
    if foreign is not None and has_x32:
        spans.append(Span(_X32_NUMBERS, _NUMBERS_END - _X32_NUMBERS, (foreign,)))
    assembler = Assembler()
    targets = _Targets(assembler)
    add_search(assembler, fewest_comparisons(spans), targets.label)
    number_known = assembler.load(NUMBER_OFFSET)
    if foreign is not None:
        assembler.jump(JEQ, _AUDIT_ARCH[arch], number_known, targets.label(foreign))
        assembler.load(ARCH_OFFSET)
    return assembler.assemble()


def _spans(accepted: Callable[[int], Accepted], unknown: int, end: int) -> list[Span[Verdict]]:
    """Return the numbers below `end` in spans of equal `accepted`; rows end at `unknown`."""
    spans = []
    for verdicts, group in groupby(range(unknown + 1), key=accepted):
        numbers = list(group)
        last = numbers[-1] if numbers[-1] < unknown else end - 1
        spans.append(Span(numbers[0], last + 1 - numbers[0], verdicts))
    return spans


class _Targets:
    """Jump targets of the search by verdict, built on first use."""

    def __init__(self, assembler: Assembler) -> None:
        self._assembler = assembler
        self._rules: dict[Rule, Label] = {}

    def label(self, verdict: Verdict) -> Label:
        if isinstance(verdict, int):
            return self._assembler.ret(verdict)
        if verdict not in self._rules:
            self._rules[verdict] = self._lay(verdict)
        return self._rules[verdict]

    def _lay(self, rule: Rule) -> Label:
        refused = self._assembler.ret(SECCOMP_RET_ERRNO | rule.errno)
        label = self._assembler.ret(SECCOMP_RET_ALLOW)
        for check in reversed(rule.checks):
            label = self._add_check(check, holds=label, fails=refused)
        return label

    def _add_check(self, check: Check, *, holds: Label, fails: Label) -> Label:
        jump = self._assembler.jump
        match check:
            case NoBits(argument, bits):
                jump(JSET, bits, fails, holds)
            case NoneOf(argument, values):
                label = holds
                for value in reversed(values):
                    label = jump(JEQ, value, fails, label)
            case OneOf(argument, values, mask):
                label = fails
                for value in reversed(values):
                    label = jump(JEQ, value, holds, label)
                if mask is not None:
                    self._assembler.mask(mask)
            case Within(argument, rows):
                # All of them before the comparisons, which fall through only to each other.
                labels = [(v, self._add_check(row, holds=holds, fails=fails)) for v, row in rows]
                label = fails
                for value, inner in reversed(labels):
                    label = jump(JEQ, value, inner, label)
        return self._assembler.load(argument_offset(argument))
