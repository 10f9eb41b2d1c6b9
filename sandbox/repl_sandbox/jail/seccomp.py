"""System-call filters: the rows of `syscalls.py`, compiled to classic BPF."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from errno import ENOSYS, ENOTSUP
from functools import cache
from itertools import groupby
from typing import Final, Generic, NamedTuple, NewType, TypeAlias, TypeVar

from ..native.libc import NativeCall, call
from ..native.library import Rows, perform
from .syscalls import (
    ALLOW,
    CONFINED,
    REFUSE,
    RULES,
    SETUP,
    UNCHANGED,
    Arch,
    Check,
    NoBits,
    NoneOf,
    OneOf,
    Refuse,
    Rule,
    Setup,
    Tier,
    Unchanged,
    Within,
)

# Classic BPF for seccomp: instructions as bytes, and short searches among numbers.
#
# Covers: loads from the system call's data, masks, comparisons, returns (kernel:
# Documentation/userspace-api/seccomp_filter.rst; opcodes: uapi/linux/bpf_common.h). Does not
# cover: any policy (see `syscalls.py`). Programs use only instructions that the
# kernel can evaluate at load time (seccomp_is_const_allow, Linux 5.11), so that a call which is
# always allowed never runs the filter.

Label = NewType("Label", int)
VerdictT = TypeVar("VerdictT", bound=Hashable)

INSTRUCTION: Final = struct.Struct("=HBBI")  # struct sock_filter: code, jt, jf, k

# struct seccomp_data: int nr; u32 arch; u64 instruction_pointer; u64 args[6]
NUMBER_OFFSET: Final = 0
ARCH_OFFSET: Final = 4
_ARGUMENTS_OFFSET: Final = 16
_ARGUMENT_SIZE: Final = 8

_LD_W_ABS: Final = 0x20
_ALU_AND_K: Final = 0x54
_RET_K: Final = 0x06
_JA: Final = 0x05
JEQ: Final = 0x15
JGE: Final = 0x35
JSET: Final = 0x45

_FARTHEST_JUMP: Final = 0xFF  # jt and jf are one byte each


def argument_offset(argument: int) -> int:
    """Return the offset of the low 32 bits of an argument (0 to 5), little-endian."""
    return _ARGUMENTS_OFFSET + _ARGUMENT_SIZE * argument


class Assembler:
    """Builds a program from its last instruction to its first.

    BPF jumps only forward. Backwards, the target of every jump is known when the jump is written.
    `load` and `mask` fall through to the instruction built just before them.
    """

    def __init__(self) -> None:
        self._backwards: list[bytes] = []
        self._returns: dict[int, Label] = {}
        self._nearer: dict[Label, Label] = {}

    def ret(self, action: int) -> Label:
        """Return `action`. All returns of one action are one instruction."""
        if action not in self._returns:
            self._returns[action] = self._add(_RET_K, action)
        return self._returns[action]

    def jump(self, test: int, operand: int, if_true: Label, if_false: Label) -> Label:
        """Compare the loaded word with `operand` by `test` (JEQ, JGE, JSET)."""
        if_true, if_false = self._within_reach(if_true), self._within_reach(if_false)
        return self._add(test, operand, self._distance(if_true), self._distance(if_false))

    def load(self, offset: int) -> Label:
        """Load the 32-bit word at `offset` of the system call's data."""
        return self._add(_LD_W_ABS, offset)

    def mask(self, bits: int) -> Label:
        """Keep only `bits` of the loaded word."""
        return self._add(_ALU_AND_K, bits)

    def assemble(self) -> bytes:
        """Return the program, first instruction first."""
        return b"".join(reversed(self._backwards))

    def _add(self, code: int, operand: int, if_true: int = 0, if_false: int = 0) -> Label:
        self._backwards.append(INSTRUCTION.pack(code, if_true, if_false, operand))
        return Label(len(self._backwards) - 1)

    def _within_reach(self, target: Label) -> Label:
        """Return `target`, or an unconditional jump to it that a comparison can reach.

        Nothing falls through to that jump: the instruction before it is always a comparison.
        """
        nearest = self._nearer.get(target, target)
        # One more may be needed for the other target of the same comparison.
        if self._distance(nearest) + 1 > _FARTHEST_JUMP:
            nearest = self._nearer[target] = self._add(_JA, self._distance(target))
        return nearest

    def _distance(self, target: Label) -> int:
        return len(self._backwards) - 1 - target


@dataclass(frozen=True, slots=True)
class Span(Generic[VerdictT]):
    """`width` numbers from `first` on, for which each of the `accepted` verdicts will do."""

    first: int
    width: int
    accepted: tuple[VerdictT, ...]


@dataclass(frozen=True, slots=True)
class Leaf(Generic[VerdictT]):
    """The numbers from `first` to the next leaf: one verdict, except for some single numbers."""

    first: int
    verdict: VerdictT
    exceptions: tuple[tuple[int, VerdictT], ...] = ()


class _Plan(NamedTuple, Generic[VerdictT]):
    comparisons: int
    leaves: tuple[Leaf[VerdictT], ...]


def fewest_comparisons(spans: Iterable[Span[VerdictT]]) -> tuple[Leaf[VerdictT], ...]:
    """Return the leaves of the cheapest search tree for `spans`, which are adjacent and in order.

    A new leaf costs a comparison, and so does an exception within a leaf. A single number between
    two spans of another verdict is therefore cheaper as an exception. For each verdict of the last
    leaf, the best plan so far is kept, so the result is optimal.
    """
    best: list[_Plan[VerdictT]] = [_Plan(0, ())]
    for span in spans:
        ends: dict[VerdictT, _Plan[VerdictT]] = {}
        for plan in (longer for shorter in best for longer in _continue(shorter, span)):
            shortest = ends.setdefault(plan.leaves[-1].verdict, plan)
            if plan.comparisons < shortest.comparisons:
                ends[plan.leaves[-1].verdict] = plan
        best = list(ends.values())
    return min(best, key=lambda plan: plan.comparisons).leaves


def _continue(plan: _Plan[VerdictT], span: Span[VerdictT]) -> Iterator[_Plan[VerdictT]]:
    """Yield the ways to add `span` to `plan`."""
    if not plan.leaves:
        yield from (_Plan(0, (Leaf(span.first, verdict),)) for verdict in span.accepted)
        return
    *before, last = plan.leaves
    if last.verdict in span.accepted:
        yield plan
        return
    for verdict in span.accepted:
        yield _Plan(plan.comparisons + 1, (*plan.leaves, Leaf(span.first, verdict)))
        if span.width == 1:
            exceptions = (*last.exceptions, (span.first, verdict))
            yield _Plan(plan.comparisons + 1, (*before, replace(last, exceptions=exceptions)))


def add_search(
    assembler: Assembler,
    leaves: Sequence[Leaf[VerdictT]],
    target: Callable[[VerdictT], Label],
) -> Label:
    """Build a binary search for the loaded word, with jumps to the `target` of its verdict."""
    if len(leaves) > 1:
        middle = len(leaves) // 2
        high = add_search(assembler, leaves[middle:], target)
        low = add_search(assembler, leaves[:middle], target)
        return assembler.jump(JGE, leaves[middle].first, high, low)
    label = target(leaves[0].verdict)
    for number, verdict in reversed(leaves[0].exceptions):
        label = assembler.jump(JEQ, number, target(verdict), label)
    return label


# System-call filters of a session, compiled from the rows of `syscalls`.
#
# Covers: system calls by number and by the arguments in registers; foreign entries (i386, x32),
# which end the process. Does not cover: data behind a pointer, such as paths (see the mounts),
# and `no_new_privs`, which comes before `load`.
#
# Two ways lead to the same result:
#
# - `program`, loaded by a session as its last step;
# - `base_program`, loaded once by a trusted parent and inherited by fork, and `final_program`,
#   loaded by a session as its last step.
#
# The base leaves open the calls that build a session (`SETUP`), and the final filter closes
# exactly those. Loading costs in proportion to length, and the final filter is short. The final
# filter alone is no protection.

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


class Choice(NamedTuple):
    """Two actions of seccomp: one if every check holds for the arguments, one otherwise.

    `instead`: other actions for values that the first check refuses.
    """

    checks: tuple[Check, ...]
    action: int
    otherwise: int
    instead: tuple[tuple[int, int], ...] = ()


# Verdict on a call: an action of seccomp, or a choice between two by arguments.
Verdict: TypeAlias = int | Choice
Accepted: TypeAlias = tuple[Verdict, ...]

_UNKNOWN: Final = SECCOMP_RET_ERRNO | ENOSYS
_UNPERFORMED: Final = SECCOMP_RET_ERRNO | 0  # the call returns 0, and nothing is done


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
        verdict, opened = strict.get(n, _UNKNOWN), base.get(n, _UNKNOWN)
        if verdict != opened:
            return (_closing(verdict, opened),)
        if isinstance(verdict, Choice) or verdict == SECCOMP_RET_ALLOW:
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
    by_name |= {row.call: _unchanged(row, refused=by_name[row.call]) for row in UNCHANGED}
    by_name |= {rule.call: _choice(rule) for rule in RULES}
    for row in CONFINED if tier == "confined" else ():
        by_name |= {row.call: _choice(row)} if isinstance(row, Rule) else {row.name: _refusal(row)}
    if setup:
        by_name |= {row.call: _opened(row, by_name[row.call]) for row in SETUP if tier in row.tiers}
    numbers = ((row.number(arch), row.name) for row in (*ALLOW, *REFUSE))
    return {n: by_name[name] for n, name in numbers if n is not None}


def _refusal(row: Refuse) -> int:
    return SECCOMP_RET_ERRNO | row.errno


def _choice(rule: Rule) -> Choice:
    instead = tuple((value, SECCOMP_RET_ERRNO | errno) for value, errno in rule.instead)
    return Choice(rule.checks, SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO | rule.errno, instead)


def _opened(row: Setup, verdict: Verdict) -> Verdict:
    """Return the verdict of the base on a call that is needed to build a session."""
    if not row.options:
        return SECCOMP_RET_ALLOW
    assert isinstance(verdict, Choice)
    (check,) = verdict.checks
    assert isinstance(check, OneOf)
    return verdict._replace(checks=(replace(check, values=(*check.values, *row.options)),))


def _closing(verdict: Verdict, opened: Verdict) -> Verdict:
    """Return a verdict that makes `opened` the stricter `verdict` where both are in force."""
    if not (isinstance(verdict, Choice) and isinstance(opened, Choice)):
        return verdict
    (strict,), (base,) = verdict.checks, opened.checks
    assert isinstance(strict, OneOf)
    assert isinstance(base, OneOf)
    options = tuple(value for value in base.values if value not in strict.values)
    return verdict._replace(checks=(NoneOf(strict.argument, options),))


def _unchanged(row: Unchanged, refused: Verdict) -> Choice:
    assert isinstance(refused, int)
    return Choice(row.checks, _UNPERFORMED, refused)


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
        self._choices: dict[Choice, Label] = {}

    def label(self, verdict: Verdict) -> Label:
        if isinstance(verdict, int):
            return self._assembler.ret(verdict)
        if verdict not in self._choices:
            self._choices[verdict] = self._lay(verdict)
        return self._choices[verdict]

    def _lay(self, choice: Choice) -> Label:
        refused = self._assembler.ret(choice.otherwise)
        label = self._assembler.ret(choice.action)
        first, *others = choice.checks
        for check in reversed(others):
            label = self._add_check(check, holds=label, fails=refused)
        for value, action in choice.instead:  # of the word that the first check has loaded
            refused = self._assembler.jump(JEQ, value, self._assembler.ret(action), refused)
        return self._add_check(first, holds=label, fails=refused)

    def _add_check(self, check: Check, *, holds: Label, fails: Label) -> Label:
        jump = self._assembler.jump
        match check:
            case NoBits(argument, bits):
                jump(JSET, bits, fails, holds)
            case NoneOf(argument, values):
                self._search(values, fails, holds)
            case OneOf(argument, values, mask):
                self._search(values, holds, fails)
                if mask is not None:
                    self._assembler.mask(mask)
            case Within(argument, rows):
                # All of them before the comparisons, which fall through only to each other.
                labels = [(v, self._add_check(row, holds=holds, fails=fails)) for v, row in rows]
                label = fails
                for value, inner in reversed(labels):
                    label = jump(JEQ, value, inner, label)
        return self._assembler.load(argument_offset(argument))

    def _search(self, values: tuple[int, ...], found: Label, missing: Label) -> None:
        """Build the search for the loaded word among `values`."""
        leaves = fewest_comparisons(_spans_of(values))
        add_search(self._assembler, leaves, lambda is_found: found if is_found else missing)


def _spans_of(values: tuple[int, ...]) -> Iterator[Span[bool]]:
    """Yield all words in spans of those among `values` and those that are not."""
    first = 0
    for value in sorted(values):
        if value > first:
            yield Span(first, value - first, (False,))
        yield Span(value, 1, (True,))
        first = value + 1
    if first < _NUMBERS_END:
        yield Span(first, _NUMBERS_END - first, (False,))
