"""Classic BPF for seccomp: instructions as bytes, and short searches among numbers.

Covers: loads from the system call's data, masks, comparisons, returns (kernel:
Documentation/userspace-api/seccomp_filter.rst; opcodes: uapi/linux/bpf_common.h). Does not cover:
any policy (see `syscalls`, `seccomp_filters`). Programs use only instructions that the kernel can
evaluate at load time (seccomp_is_const_allow, Linux 5.11), so that a call which is always allowed
never runs the filter.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, NamedTuple, NewType, TypeVar

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

    def ret(self, action: int) -> Label:
        """Return `action`. All returns of one action are one instruction."""
        if action not in self._returns:
            self._returns[action] = self._add(_RET_K, action)
        return self._returns[action]

    def jump(self, test: int, operand: int, if_true: Label, if_false: Label) -> Label:
        """Compare the loaded word with `operand` by `test` (JEQ, JGE, JSET).

        Raises:
            ValueError: a target is out of reach of a jump.
        """
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

    def _distance(self, target: Label) -> int:
        distance = len(self._backwards) - 1 - target
        if distance > _FARTHEST_JUMP:
            raise ValueError(f"a jump over {distance} instructions; BPF reaches {_FARTHEST_JUMP}")
        return distance


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
