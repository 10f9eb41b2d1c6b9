"""The filters: the same answers as the table, in a BPF interpreter and in the kernel."""

import ctypes
import errno
import functools
import json
import os
import platform
import signal
import struct
import subprocess
import sys
from errno import ENOSYS, EPERM

import pytest

from repl_sandbox.jail import seccomp
from repl_sandbox.jail.call_options import IOCTL_REQUESTS
from repl_sandbox.jail.syscalls import (
    ALLOW,
    CONFINED,
    REFUSE,
    RULES,
    SETUP,
    UNCHANGED,
    NoBits,
    NoneOf,
    OneOf,
    Refuse,
    Within,
)
from tests.sandbox.jail import filtered
from tests.sandbox.jail.filtered import HIGH, NOT_BY_THEMSELVES, ORDINARY, PROBES

# ── what the kernel does with a filter ───────────────────────────────────────────────────────────

ALLOWED = seccomp.SECCOMP_RET_ALLOW
KILLED = seccomp.SECCOMP_RET_KILL_PROCESS
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "i386": 0x40000003, "arm": 0x40000028}
LOAD, AND, JUMP_EQUAL, JUMP_GREATER_EQUAL, JUMP_SET, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
JUMP = 0x05
COMPARE = {
    JUMP_EQUAL: lambda a, k: a == k,
    JUMP_GREATER_EQUAL: lambda a, k: a >= k,
    JUMP_SET: lambda a, k: a & k != 0,
}


def decode(program):
    return list(struct.iter_unpack("=HBBI", program))


def interpret(instructions, arch, number, arguments):
    """Return the action of a decoded program; KeyError for an instruction outside the used set."""
    words = [a & 0xFFFFFFFF_FFFFFFFF for a in arguments]
    data = struct.pack("<IIQ6Q", number, AUDIT_ARCH[arch], 0, *words)
    at, word = 0, 0
    while True:
        code, yes, no, operand = instructions[at]
        at += 1
        if code == RETURN:
            return operand
        if code == LOAD:
            (word,) = struct.unpack_from("<I", data, operand)
        elif code == AND:
            word &= operand
        elif code == JUMP:
            at += operand
        else:
            at += yes if COMPARE[code](word, operand) else no


def strictest(newer, older):
    """Return the action of two filters: seccomp(2), "the first-seen ... highest precedence"."""

    def precedence(action):
        return ctypes.c_int32(action & 0xFFFF0000).value

    return newer if precedence(newer) <= precedence(older) else older


# ── what the table says ──────────────────────────────────────────────────────────────────────────


def holds(check, arguments):
    word = arguments[check.argument] & 0xFFFFFFFF
    match check:
        case OneOf(_, values, mask):
            return (word if mask is None else word & mask) in values
        case NoneOf(_, values):
            return word not in values
        case NoBits(_, bits):
            return not word & bits
        case Within(_, rows):
            return any(word == value and holds(row, arguments) for value, row in rows)


def from_the_table(arch, number, arguments, tier):
    if arch == "x86_64" and number >= 0x40000000:
        return KILLED
    names = {row.number(arch): row for row in (*ALLOW, *REFUSE)}
    row = names.get(number)
    if row is None:
        return seccomp.SECCOMP_RET_ERRNO | ENOSYS
    stricter = CONFINED if tier == "confined" else ()
    refused = {each.name: each for each in stricter if isinstance(each, Refuse)}
    row = refused.get(row.name, row)
    unchanged = [each for each in UNCHANGED if each.call == row.name]
    if unchanged and all(holds(check, arguments) for check in unchanged[0].checks):
        return seccomp.SECCOMP_RET_ERRNO
    if isinstance(row, Refuse):
        return seccomp.SECCOMP_RET_ERRNO | row.errno
    rules = {rule.call: rule for rule in RULES}
    rules |= {each.call: each for each in stricter if not isinstance(each, Refuse)}
    for rule in rules.values():
        if rule.call == row.name and not all(holds(check, arguments) for check in rule.checks):
            instead = dict(rule.instead).get(arguments[rule.checks[0].argument] & 0xFFFFFFFF)
            return seccomp.SECCOMP_RET_ERRNO | (instead or rule.errno)
    return ALLOWED


NUMBERS = [*range(601), 0x3FFFFFFF, 0x40000000, 0x40000027, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
ARGUMENTS = [
    (0, 0, 0, 0, 0, 0),
    (-1, -1, -1, -1, -1, -1),
    (-1, 9, 0, 0, 0, 0),
    (0xFFFFFFFF, 9, 0, 0, 0, 0),
    (HIGH, 9, 0, 0, 0, 0),
    *((1 << bit, 0, 0, 0, 0, 0) for bit in range(40)),
    (0x3D0F00, 0, 0, 0, 0, 0),  # the flags of pthread_create
    *((0, 0x5412 + i, 0, 0, 0, 0) for i in range(-2, 20)),
    *((0, HIGH | request, 0, 0, 0, 0) for request in (0x5412, 0x541C, 0x541D, 0x5423, 0x5413)),
    *((family, 1, 0, 0, 0, 0) for family in range(48)),
    *((family, kind, 0, 0, 0, 0) for family in (1, 2, 10) for kind in range(16)),
    *((2, 0o2004001, protocol, 0, 0, 0) for protocol in (0, 1, 6, 17, 132, 136, 255, 262)),
    (HIGH | 16, 3, 0, 0, 0, 0),
    (HIGH | 2, HIGH | 1, HIGH | 6, 0, 0, 0),
    *((-1, 0, flags, 0, 0, 0) for flags in (1, HIGH | 1, 0x4001, 0x4000)),
    *((-1, 0, 0, flags, 0, 0) for flags in (1, HIGH | 1, 0x4001, 0x4000)),
]
# Options of prctl and arch_prctl, advice, modes of renameat2; requests of ioctl, far apart.
ARGUMENTS += [(option, 0, 0, 0, 0, 0) for option in (*range(100), 0x53564D41, 0x41555856, 0x1002)]
ARGUMENTS += [(-1, 0, value, value, value, 0) for value in range(110)]
REQUESTS = sorted({row.number for row in IOCTL_REQUESTS} | {0xB701, 0x8901, 0x8914, 0xC0502100})
ARGUMENTS += [(-1, request + near, 0, 0, 0, 0) for request in REQUESTS for near in (-1, 0, 1, HIGH)]
# Levels of sockets: of sockets, IP, TCP, UDP, IPv6, and others that the kernel has.
LEVELS = (0, 1, 6, 17, 41, 136, 255, 270, 279, 282, 284, 0xFFFFFFFF, HIGH | 1, HIGH | 6)
OPTIONS = [(-1, level, option, 0, 0, 0) for level in LEVELS for option in (*range(130), HIGH | 26)]
RULED = {rule.call for rule in RULES} | {row.call for row in SETUP}
RULED |= {row.call for row in UNCHANGED}
RULED |= {row.name if isinstance(row, Refuse) else row.call for row in CONFINED}


def cases(arch):
    """Yield every number; all arguments for calls with rules, two for the rest."""
    close = {row.number(arch) for row in (*ALLOW, *REFUSE) if row.name in RULED}
    (options,) = (row.number(arch) for row in ALLOW if row.name == "setsockopt")
    for number in NUMBERS:
        for arguments in ARGUMENTS if number in close else ARGUMENTS[:2]:
            yield number, arguments
    for arguments in OPTIONS:
        yield options, arguments


# ── filters and table agree ──────────────────────────────────────────────────────────────────────

both_architectures = pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
both_tiers = pytest.mark.parametrize("tier", ["jailed", "confined"])


@both_tiers
@both_architectures
def test_the_filter_says_what_the_table_says(arch, tier):
    program = decode(seccomp.program(arch, tier))
    for number, arguments in cases(arch):
        expected = from_the_table(arch, number, arguments, tier)
        assert interpret(program, arch, number, arguments) == expected, (number, arguments)


@both_tiers
@both_architectures
def test_base_and_final_filter_together_equal_the_whole_filter(arch, tier):
    program, base, seal = (
        decode(make(arch, tier))
        for make in (
            seccomp.program,
            seccomp.base_program,
            seccomp.final_program,
        )
    )
    for number, arguments in cases(arch):
        call = (arch, number, arguments)
        together = strictest(interpret(seal, *call), interpret(base, *call))
        assert together == interpret(program, *call), call


@both_tiers
@both_architectures
def test_the_base_filter_allows_the_setup_calls_alone(arch, tier):
    program, base = (
        decode(seccomp.program(arch, tier)),
        decode(seccomp.base_program(arch, tier)),
    )
    names = {row.number(arch): row.name for row in (*ALLOW, *REFUSE)}
    opened = set()
    for number, arguments in cases(arch):
        loose = interpret(base, arch, number, arguments)
        if loose != interpret(program, arch, number, arguments):
            assert loose == ALLOWED
            opened.add(names[number])
    assert opened == {row.call for row in SETUP if tier in row.tiers}


@pytest.mark.parametrize(
    ("arch", "foreign"), [("x86_64", "i386"), ("x86_64", "aarch64"), ("aarch64", "arm")]
)
@pytest.mark.parametrize("make", [seccomp.program, seccomp.base_program])
def test_entries_of_another_architecture_end_the_process(make, arch, foreign):
    program = decode(make(arch))
    assert {interpret(program, foreign, n, ARGUMENTS[0]) for n in NUMBERS} == {KILLED}


@both_architectures
def test_filters_are_short(arch):
    """Loading costs by length; one comparison per row would make over 700 instructions."""
    # The template loads this one, once for all sessions, and each session the next.
    assert len(decode(seccomp.program(arch))) <= 280
    assert len(decode(seccomp.final_program(arch))) < 50
    # Eight further calls with rules.
    assert len(decode(seccomp.program(arch, "confined"))) <= 296


def test_filters_do_not_depend_on_the_hash_seed():
    print_it = (
        "from repl_sandbox.jail import seccomp as s\n"
        "for make in (s.program, s.base_program, s.final_program): print(make('x86_64').hex())"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", print_it],
            env=child_environment() | {"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(texts) == 1


@pytest.mark.parametrize("make", [seccomp.program, seccomp.base_program, seccomp.final_program])
def test_an_unknown_architecture_is_refused(make):
    with pytest.raises(ValueError, match="riscv64"):
        make("riscv64")


def test_the_kernel_s_refusal_of_a_program_is_an_error():
    with pytest.raises(OSError) as caught:
        seccomp.load(b"")
    assert caught.value.errno == errno.EINVAL


# ── in the kernel: what a child under the filter finds ───────────────────────────────────────────


def child_environment():
    return dict(os.environ) | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@functools.cache
def came_to(loads, *names):
    """Return [exit status, output] of each report under these filters."""
    done = subprocess.run(
        [sys.executable, filtered.__file__, loads, *names],
        env=child_environment(),
        stdout=subprocess.PIPE,
        timeout=filtered.SECONDS * (len(names) + 1),
        check=True,
    )
    return json.loads(done.stdout)


linux = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"),
    reason="loads a filter into the kernel",
)
x86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="entries of x86-64")
under_both = pytest.mark.parametrize("loads", ["program", "base and seal"])


@linux
@under_both
def test_calls_fail_with_the_documented_errno(loads):
    status, found = came_to(loads, "probes")["probes"]
    assert status == 0
    assert json.loads(found) == {name: expected for name, (_, _, expected) in PROBES.items()}


@linux
def test_refusals_come_from_the_filter():
    found = json.loads(came_to("nothing", "probes")["probes"][1])
    assert [name for name in NOT_BY_THEMSELVES if found[name] == PROBES[name][2]] == []


@linux
@x86_64
@under_both
@pytest.mark.parametrize("entry", ["i386", "x32"])
def test_foreign_entries_kill_the_process(loads, entry):
    assert came_to(loads, "i386", "x32")[entry] == [-signal.SIGSYS, ""]


@linux
@under_both
def test_threads_that_ran_before_are_under_the_filter(loads):
    assert came_to(loads, "thread")["thread"] == [0, json.dumps([EPERM])]


@linux
@under_both
@pytest.mark.parametrize("work", ORDINARY)
def test_ordinary_python_works_under_the_filter(loads, work):
    status, found = came_to(loads, *ORDINARY)[work]
    assert status == 0
    assert json.loads(found) == ORDINARY[work][1]
