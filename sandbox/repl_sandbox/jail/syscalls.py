"""System calls of a session: the allowed ones, the refused ones, and reasons.

This table is the policy; `seccomp.py` compiles it to a filter. A call without a row here does
not exist in a session: it fails with ENOSYS, so that new calls of the kernel stay closed until
somebody decides, and the C library uses its older path. Calls that code needs are allowed.
Dangerous calls are refused with EPERM, so that programs print a sensible error. No row ends the
process: one library that probes for a feature at import would end the session. (Kernels from 6.14
on let uretprobe pass all filters, and from 6.18 on uprobe: `PAST_FILTERS`.)

Numbers are those of the kernel's tables (arch/x86/entry/syscalls/syscall_64.tbl and
include/uapi/asm-generic/unistd.h), None where an architecture lacks the call.
"""

from __future__ import annotations

from dataclasses import dataclass
from errno import EAFNOSUPPORT, EINVAL, ENOMEM, ENOPROTOOPT, ENOSYS, EOPNOTSUPP, EPERM
from typing import Final, Literal, TypeAlias

from ..native.libc import (
    CLONE_NEWCGROUP,
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
)
from .call_options import (
    ARCH_PRCTL_OPTIONS,
    FCNTL_COMMANDS,
    FILE_ADVICE,
    IOCTL_REQUESTS,
    IPPROTO_IP,
    IPPROTO_TCP,
    MEMORY_ADVICE,
    PRCTL_OPTIONS,
    SOCKET_OPTIONS,
    numbers,
)

Arch: TypeAlias = Literal["x86_64", "aarch64"]
Tier: TypeAlias = Literal["jailed", "confined"]  # tiers with a filter

CLONE_NEWTIME: Final = 0x00000080  # uapi/linux/sched.h
CLONE_NAMESPACES: Final = (
    CLONE_NEWNS
    | CLONE_NEWCGROUP
    | CLONE_NEWUTS
    | CLONE_NEWIPC
    | CLONE_NEWUSER
    | CLONE_NEWPID
    | CLONE_NEWNET
    | CLONE_NEWTIME
)

# Linux's own values, whatever system imports this module: linux/socket.h, linux/net.h,
# uapi/linux/in.h.
AF_UNIX: Final = 1
AF_INET: Final = 2
AF_INET6: Final = 10
AF_NETLINK: Final = 16
SOCK_STREAM: Final = 1
SOCK_DGRAM: Final = 2
SOCK_TYPE_MASK: Final = 0xF
IPPROTO_UDP: Final = 17
MSG_OOB: Final = 1
RWF_NOWAIT: Final = 0x08  # uapi/linux/fs.h, as the next
RWF_DONTCACHE: Final = 0x80
MAP_HUGETLB: Final = 0x40000  # uapi/asm-generic/mman-common.h
RENAME_NOREPLACE: Final = 1  # uapi/linux/fs.h, as the next
RENAME_EXCHANGE: Final = 2
PR_CAPBSET_DROP: Final = 24  # uapi/linux/prctl.h, as the next
PR_CAP_AMBIENT: Final = 47
SIOCSIFFLAGS: Final = 0x8914  # uapi/linux/sockios.h
# uapi/linux/seccomp.h: SECCOMP_IOCTL_NOTIF_RECV, _SEND, _ADDFD, _SET_FLAGS
SECCOMP_NOTICES: Final = (0xC0502100, 0xC0182101, 0x40182103, 0x40082104)
SCHED_OTHER: Final = 0  # uapi/linux/sched.h
PRIO_PROCESS: Final = 0  # uapi/linux/resource.h
IOPRIO_CLASS_NONE: Final = 0  # uapi/linux/ioprio.h
MPOL_DEFAULT: Final = 0  # uapi/linux/mempolicy.h
WORD: Final = 0xFFFFFFFF
NEGATIVE: Final = 1 << 31  # the sign of an int
EVERY_PROCESS: Final = 0xFFFFFFFF  # the int -1
THIS_PROCESS: Final = 0
INIT_PROCESS: Final = 1


@dataclass(frozen=True, slots=True)
class SystemCall:
    """A system call, its number on each architecture, and the reason for its place."""

    name: str
    x86_64: int | None
    aarch64: int | None
    reason: str

    def number(self, arch: Arch) -> int | None:
        """Return the call's number on `arch`, or None if it does not exist there."""
        return self.x86_64 if arch == "x86_64" else self.aarch64


@dataclass(frozen=True, slots=True)
class Allow(SystemCall):
    """A call that sessions may make, unless a rule in `RULES` restricts it."""


@dataclass(frozen=True, slots=True)
class Refuse(SystemCall):
    """A call that fails with `errno`."""

    errno: int = EPERM


# Every check compares the low 32 bits of an argument: each argument below is an int or an unsigned
# int in the kernel, which ignores the high bits. A comparison of all 64 would be a way around
# (CVE-2019-10063: TIOCSTI with a high bit set).


@dataclass(frozen=True, slots=True)
class OneOf:
    """The argument (0 to 5), or its bits in `mask`, is one of `values`."""

    argument: int
    values: tuple[int, ...]
    mask: int | None = None


@dataclass(frozen=True, slots=True)
class NoneOf:
    """The argument (0 to 5) is none of `values`."""

    argument: int
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NoBits:
    """No bit of `bits` is set in the argument (0 to 5)."""

    argument: int
    bits: int


@dataclass(frozen=True, slots=True)
class Within:
    """The argument (0 to 5) is the first value of a row of `rows`, and the row's check holds."""

    argument: int
    rows: tuple[tuple[int, OneOf], ...]


Check: TypeAlias = OneOf | NoneOf | NoBits | Within


@dataclass(frozen=True, slots=True)
class Rule:
    """An allowed call succeeds only if every check holds, otherwise it fails with `errno`.

    `instead`: pairs of a value of the first check's argument and the errno for it.
    """

    call: str
    checks: tuple[Check, ...]
    errno: int
    reason: str
    instead: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Unchanged:
    """A refused call that returns 0, unperformed, if every check holds: it would change nothing."""

    call: str
    checks: tuple[Check, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Setup:
    """A call, refused or limited in a session, that trusted code of `tiers` needs to build one.

    `options`: needed only with these values of the argument that the call's rule is about.
    """

    call: str
    reason: str
    tiers: tuple[Tier, ...] = ("jailed",)
    options: tuple[int, ...] = ()


# CVE-2025-38236: a browser's renderer left its sandbox by a byte out of band on a pair.
_NOT_OUT_OF_BAND: Final = "no program needs it on a pair, and its rare code has been a way out"

RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "clone",
        # The kernel takes only the low half of clone's flags; the rest exists for clone3 alone.
        (NoBits(0, CLONE_NAMESPACES),),
        EPERM,
        "a nested user namespace opens the kernel code that root may reach",
    ),
    Rule(
        "socket",
        (
            OneOf(0, (AF_UNIX, AF_INET, AF_INET6)),
            OneOf(1, (SOCK_STREAM, SOCK_DGRAM), mask=SOCK_TYPE_MASK),
            OneOf(2, (IPPROTO_IP, IPPROTO_TCP, IPPROTO_UDP)),
        ),
        EAFNOSUPPORT,
        "rare families and protocols (AF_ALG, AF_VSOCK, MPTCP, raw) are where kernel bugs live",
        # libzmq ends the process if it cannot list interfaces for any other reason.
        ((AF_NETLINK, EOPNOTSUPP),),
    ),
    Rule(
        "socketpair",
        (OneOf(0, (AF_UNIX,)),),
        EAFNOSUPPORT,
        "asyncio and multiprocessing need AF_UNIX; nothing needs another family",
    ),
    Rule(
        "setsockopt",
        (
            Within(
                1,
                tuple(
                    (level, OneOf(2, numbers(options))) for level, options in SOCKET_OPTIONS.items()
                ),
            ),
        ),
        ENOPROTOOPT,
        "most options are for networks that no session has, and lead to code that few ever run",
    ),
    # The receiving side may ask, and finds nothing.
    Rule("sendto", (NoBits(3, MSG_OOB),), EOPNOTSUPP, _NOT_OUT_OF_BAND),
    Rule("sendmsg", (NoBits(2, MSG_OOB),), EOPNOTSUPP, _NOT_OUT_OF_BAND),
    Rule("sendmmsg", (NoBits(3, MSG_OOB),), EOPNOTSUPP, _NOT_OUT_OF_BAND),
    Rule(
        "ioctl",
        (OneOf(1, numbers(IOCTL_REQUESTS)),),
        EPERM,
        "the others type into a terminal (CVE-2017-5226), load line disciplines, signal others, or "
        "lead to code of file systems and devices",
    ),
    Rule(
        "kill",
        (NoneOf(0, (EVERY_PROCESS,)),),
        EPERM,
        "kill(-1) would also kill the waiting snapshot of the worker",
    ),
    Rule(
        "prlimit64",
        (OneOf(0, (THIS_PROCESS,)),),
        EPERM,
        "an ordinary user's session shares its uid with init, whose limits could be made deadly",
    ),
    Rule(
        "sched_setaffinity",
        # Not this process only: OpenMP and torch name their own threads by their ids.
        (NoneOf(0, (INIT_PROCESS,)),),
        EPERM,
        "an ordinary user's session shares its uid with init, which code must not move",
    ),
    Rule(
        "sched_setparam",
        (OneOf(0, (THIS_PROCESS,)),),
        EPERM,
        "other numbers may be processes of the host's user in a real-time class",
    ),
    Rule(
        "setpriority",
        (OneOf(0, (PRIO_PROCESS,)), NoneOf(1, (INIT_PROCESS,))),
        EPERM,
        "an ordinary user's session shares its uid with init, which code must not slow",
    ),
    Rule(
        "fcntl",
        (OneOf(1, numbers(FCNTL_COMMANDS)),),
        EPERM,
        "leases delay other processes that open the same user's file, and report it, as F_NOTIFY "
        "does; larger pipes take of what the kernel lets the host's user have for pipes",
    ),
    Rule(
        "preadv2",
        (NoBits(5, RWF_NOWAIT | RWF_DONTCACHE),),
        EOPNOTSUPP,
        "RWF_NOWAIT shows which host files are in memory, as cachestat; DONTCACHE: see fadvise64",
    ),
    Rule(
        "fadvise64",
        (OneOf(3, numbers(FILE_ADVICE)),),
        EPERM,
        "dropping pages drops the interpreter's files from the page cache, for all sessions",
    ),
    Rule(
        "madvise",
        (OneOf(2, numbers(MEMORY_ADVICE)),),
        EPERM,
        "the time of a write to a merged page shows that another session has the same content; "
        "others push the interpreter's pages out, or take memory from the machine",
    ),
    Rule(
        "mmap",
        (NoBits(3, MAP_HUGETLB),),
        ENOMEM,
        "the host's reserve of huge pages, which no limit of a session counts",
    ),
    Rule(
        "renameat2",
        (NoBits(4, WORD & ~(RENAME_NOREPLACE | RENAME_EXCHANGE)),),
        EPERM,
        "RENAME_WHITEOUT makes a device node, as mknod would",
    ),
    Rule(
        "prctl",
        (OneOf(0, numbers(PRCTL_OPTIONS)),),
        EPERM,
        "the others are filters, privileges, memory of the kernel without a limit, or what keeps "
        "sessions apart",
    ),
    Rule(
        "arch_prctl",
        (OneOf(0, numbers(ARCH_PRCTL_OPTIONS)),),
        EINVAL,
        "the others trap instructions, or are for virtual machines",
    ),
)

# Libraries set to its default what nobody has changed, and end the process if that is refused.
UNCHANGED: Final[tuple[Unchanged, ...]] = (
    Unchanged(
        "sched_setscheduler",
        (OneOf(1, (SCHED_OTHER,)), NoBits(0, NEGATIVE)),
        "pthread_setschedparam: every thread has this class already; libzmq insists",
    ),
    Unchanged("ioprio_set", (OneOf(2, (IOPRIO_CLASS_NONE,)),), "psutil.Process.ionice"),
    Unchanged("set_mempolicy", (OneOf(0, (MPOL_DEFAULT,)),), "libnuma returns to the default"),
    Unchanged("mbind", (OneOf(2, (MPOL_DEFAULT,)),), "libnuma returns to the default"),
)

_BOTH: Final[tuple[Tier, ...]] = ("jailed", "confined")

# Calls of the kernel's own trampolines, which no filter sees (kernel/seccomp.c). Elsewhere the
# kernel ends the first's caller by SIGILL and fails the second's with ENXIO; neither does anything.
PAST_FILTERS: Final = ("uretprobe", "uprobe")

SETUP: Final[tuple[Setup, ...]] = (
    Setup("clone", "a session starts by clone with the flags of its namespaces"),
    Setup("clone3", "the same into a group of version 2, for which clone has no argument"),
    Setup("unshare", "namespaces after the ids are mapped; whether a worker has one thread"),
    Setup("setns", "the zygote enters a session's network to fork it there, and leaves it"),
    Setup(
        "prctl",
        "the bounding set and the ambient capabilities are emptied",
        _BOTH,
        (PR_CAPBSET_DROP, PR_CAP_AMBIENT),
    ),
    Setup(
        "ioctl",
        "the loopback is set up; forks of a session are admitted",
        _BOTH,
        (SIOCSIFFLAGS, *SECCOMP_NOTICES),
    ),
    Setup("process_madvise", "the pages that each session writes first are copied at once", _BOTH),
    Setup("mount", "tmpfs, proc and bind mounts of the root"),
    Setup("umount2", "the old root is detached after pivot_root"),
    Setup("open_tree", "the staged root is taken along as a detached mount"),
    Setup("move_mount", "a detached mount is attached in the new root"),
    Setup("mount_setattr", "the root becomes read-only"),
    Setup("pivot_root", "the root is exchanged"),
    Setup("sethostname", "the session's host name"),
    Setup("setgroups", "supplementary groups are given up", _BOTH),
    Setup("capset", "capabilities are given up", _BOTH),
    Setup("seccomp", "the seal is a filter, loaded by this call", _BOTH),
    Setup("kill", "init ends all that is left of a session by kill(-1)"),
)

# Tier `confined` has no namespaces: its sockets would be on the host's network, its paths are the
# host's, and a process id may be anybody's. These rows replace the rows of the same name. Files of
# an ordinary user's session belong to that user, and others of the machine may run them once code
# has opened its directory to them: with these bits a file would run as that user.
_OTHER_USER: Final = 0o6000  # S_ISUID, S_ISGID
_NO_OTHER_USER: Final = "a program made in a session must not lend anybody the host's user"

CONFINED: Final[tuple[Rule | Refuse, ...]] = (
    Rule("chmod", (NoBits(1, _OTHER_USER),), EPERM, _NO_OTHER_USER),
    Rule("fchmod", (NoBits(1, _OTHER_USER),), EPERM, _NO_OTHER_USER),
    Rule("fchmodat", (NoBits(2, _OTHER_USER),), EPERM, _NO_OTHER_USER),
    Rule("fchmodat2", (NoBits(2, _OTHER_USER),), EPERM, _NO_OTHER_USER),
    Rule("creat", (NoBits(1, _OTHER_USER),), EPERM, _NO_OTHER_USER),
    Rule("open", (NoBits(2, _OTHER_USER),), EPERM, _NO_OTHER_USER),
    Rule("openat", (NoBits(3, _OTHER_USER),), EPERM, _NO_OTHER_USER),
    Refuse("openat2", 437, 437, "hides its mode, which no filter can inspect", ENOSYS),
    Refuse("socket", 41, 198, "the network is the host's", EAFNOSUPPORT),
    Refuse("connect", 42, 203, "the network is the host's, and so are sockets by path"),
    Refuse("bind", 49, 200, "abstract names and ports are the host's to give"),
    Refuse("listen", 50, 201, "no process outside may get an answer"),
    Refuse("accept", 43, 202, "no process outside may get an answer"),
    Refuse("accept4", 288, 242, "no process outside may get an answer"),
    Rule(
        "socketpair",
        (OneOf(0, (AF_UNIX,)), OneOf(1, (SOCK_STREAM,), mask=SOCK_TYPE_MASK)),
        EAFNOSUPPORT,
        "a pair of datagram sockets can send to any path, such as that of the system's log",
    ),
    Refuse("inotify_init1", 294, 26, "of no use without watches; counted by user"),
    Refuse("inotify_add_watch", 254, 27, "names of files that others use; Landlock lets it pass"),
    Rule(
        "sched_setaffinity",
        (OneOf(0, (THIS_PROCESS,)),),
        EPERM,
        "where uids are shared, other numbers may be processes of the host",
    ),
    Rule(
        "setpriority",
        (OneOf(0, (PRIO_PROCESS,)), OneOf(1, (THIS_PROCESS,))),
        EPERM,
        "where uids are shared, other numbers may be processes of the host",
    ),
)

# Columns: name, number on x86-64, number on aarch64, user of the call.
ALLOW: Final[tuple[Allow, ...]] = (
    # Files by descriptor
    Allow("read", 0, 63, "the wire, pipes, files"),
    Allow("write", 1, 64, "the wire, output, files"),
    Allow("readv", 19, 65, "os.readv, reads into several buffers"),
    Allow("writev", 20, 66, "gathered writes: libc's stdio, os.writev"),
    Allow("pread64", 17, 67, "reads at an offset: zip imports, memory-mapped formats"),
    Allow("pwrite64", 18, 68, "writes at an offset: sqlite, HDF5"),
    Allow("preadv", 295, 69, "os.preadv"),
    Allow("pwritev", 296, 70, "os.pwritev"),
    Allow("preadv2", 327, 286, "os.preadv with flags; two are refused, see RULES"),
    Allow("pwritev2", 328, 287, "os.pwritev with flags"),
    Allow("lseek", 8, 62, "file.seek, file.tell"),
    Allow("close", 3, 57, "end of every descriptor"),
    Allow("close_range", 436, 436, "subprocess closes what a child must not inherit"),
    Allow("dup", 32, 23, "os.dup; capture of stdout and stderr"),
    Allow("dup2", 33, None, "os.dup2; capture of stdout and stderr, where it exists"),
    Allow("dup3", 292, 24, "os.dup2 with close-on-exec; dup2 on aarch64"),
    Allow("fcntl", 72, 25, "close-on-exec, non-blocking, record locks; see RULES"),
    Allow("flock", 73, 32, "fcntl.flock: locks of caches and package managers"),
    Allow("ioctl", 16, 29, "isatty, terminal size; common requests only, see RULES"),
    Allow("fstat", 5, 80, "open() sizes its buffer by it"),
    Allow("fstatfs", 138, 44, "os.fstatvfs"),
    Allow("ftruncate", 77, 46, "file.truncate; sizing of shared memory"),
    Allow("fallocate", 285, 47, "os.posix_fallocate, shared memory"),
    Allow("fadvise64", 221, 223, "os.posix_fadvise; not to drop pages, see RULES"),
    Allow("readahead", 187, 213, "read-ahead hint of file libraries"),
    Allow("fsync", 74, 82, "os.fsync on own files"),
    Allow("fdatasync", 75, 83, "os.fdatasync; sqlite"),
    Allow("sync_file_range", 277, 84, "write-back of own files by databases"),
    Allow("copy_file_range", 326, 285, "shutil.copyfile of newer Pythons, cp"),
    Allow("getdents", 78, None, "os.listdir of old C libraries"),
    Allow("getdents64", 217, 61, "os.listdir; the import system reads directories"),
    # Files by path; the mount view decides which exist
    Allow("open", 2, None, "files, where libc still uses it"),
    Allow("openat", 257, 56, "files and imports"),
    Allow("openat2", 437, 437, "opening with resolution limits: safe extraction code"),
    Allow("creat", 85, None, "old form of open"),
    Allow("access", 21, None, "os.access, ld.so"),
    Allow("faccessat", 269, 48, "os.access by directory"),
    Allow("faccessat2", 439, 439, "os.access with flags"),
    Allow("stat", 4, None, "os.stat, where libc still uses it"),
    Allow("lstat", 6, None, "os.lstat, where libc still uses it"),
    Allow("newfstatat", 262, 79, "os.stat; every import"),
    Allow("statx", 332, 291, "other C libraries and coreutils; birth times"),
    Allow("statfs", 137, 43, "os.statvfs, shutil.disk_usage"),
    Allow("truncate", 76, 45, "os.truncate"),
    Allow("link", 86, None, "multiprocessing makes its semaphores by it"),
    Allow("linkat", 265, 37, "os.link"),
    Allow("symlink", 88, None, "os.symlink in the workspace"),
    Allow("symlinkat", 266, 36, "os.symlink by directory"),
    Allow("readlink", 89, None, "os.readlink, os.path.realpath"),
    Allow("readlinkat", 267, 78, "os.readlink by directory"),
    Allow("rename", 82, None, "os.rename; atomic replacement of caches"),
    Allow("renameat", 264, 38, "os.rename by directory"),
    Allow("renameat2", 316, 276, "mv; exchanging two names at once; see RULES"),
    Allow("unlink", 87, None, "os.remove"),
    Allow("unlinkat", 263, 35, "shutil.rmtree"),
    Allow("mkdir", 83, None, "os.mkdir, tempfile"),
    Allow("mkdirat", 258, 34, "os.mkdir by directory"),
    Allow("rmdir", 84, None, "os.rmdir"),
    Allow("chdir", 80, 49, "os.chdir; subprocess cwd"),
    Allow("fchdir", 81, 50, "os.fchdir; shutil"),
    Allow("getcwd", 79, 17, "os.getcwd"),
    Allow("chmod", 90, None, "os.chmod of own files"),
    Allow("fchmod", 91, 52, "os.fchmod of own files"),
    Allow("fchmodat", 268, 53, "os.chmod by directory"),
    Allow("fchmodat2", 452, 452, "os.chmod without following links"),
    Allow("chown", 92, None, "shutil, tar: to the own ids only, for want of capabilities"),
    Allow("fchown", 93, 55, "as chown, by descriptor"),
    Allow("lchown", 94, None, "as chown, on a link"),
    Allow("fchownat", 260, 54, "as chown, by directory"),
    Allow("utime", 132, None, "old form of utimensat"),
    Allow("utimes", 235, None, "old form of utimensat"),
    Allow("futimesat", 261, None, "old form of utimensat"),
    Allow("utimensat", 280, 88, "os.utime, shutil.copystat"),
    Allow("umask", 95, 166, "os.umask, tempfile"),
    Allow("getxattr", 191, 8, "shutil.copystat reads attributes; ls"),
    Allow("lgetxattr", 192, 9, "as getxattr, on a link"),
    Allow("fgetxattr", 193, 10, "as getxattr, by descriptor"),
    Allow("listxattr", 194, 11, "shutil.copystat lists attributes"),
    Allow("llistxattr", 195, 12, "as listxattr, on a link"),
    Allow("flistxattr", 196, 13, "as listxattr, by descriptor"),
    Allow("inotify_init1", 294, 26, "file watchers on own files"),
    Allow("inotify_add_watch", 254, 27, "file watchers on own files"),
    Allow("inotify_rm_watch", 255, 28, "file watchers on own files"),
    # Pipes and waiting
    Allow("pipe", 22, None, "os.pipe, where libc still uses it"),
    Allow("pipe2", 293, 59, "os.pipe, subprocess"),
    Allow("poll", 7, None, "select.poll, subprocess.communicate"),
    Allow("ppoll", 271, 73, "poll with a signal mask; poll on aarch64"),
    Allow("select", 23, None, "select.select, where libc still uses it"),
    Allow("pselect6", 270, 72, "select.select, time.sleep of older Pythons"),
    Allow("epoll_create", 213, None, "old form of epoll_create1"),
    Allow("epoll_create1", 291, 20, "asyncio's selector"),
    Allow("epoll_ctl", 233, 21, "asyncio's selector"),
    Allow("epoll_wait", 232, None, "asyncio's selector"),
    Allow("epoll_pwait", 281, 22, "asyncio's selector on aarch64"),
    Allow("epoll_pwait2", 441, 441, "epoll with nanosecond time-outs"),
    Allow("eventfd", 284, None, "old form of eventfd2"),
    Allow("eventfd2", 290, 19, "os.eventfd; wake-ups in native event loops"),
    Allow("signalfd", 282, None, "old form of signalfd4"),
    Allow("signalfd4", 289, 74, "signals as a descriptor in native event loops"),
    Allow("timerfd_create", 283, 85, "os.timerfd_create of Python 3.13"),
    Allow("timerfd_gettime", 287, 87, "os.timerfd_gettime of Python 3.13"),
    Allow("timerfd_settime", 286, 86, "os.timerfd_settime of Python 3.13"),
    # Memory
    Allow("brk", 12, 214, "malloc"),
    Allow("mmap", 9, 222, "CPython arenas, extension modules, mmap; see RULES"),
    Allow("munmap", 11, 215, "releasing memory"),
    Allow("mremap", 25, 216, "realloc of large blocks: growing lists and arrays"),
    Allow("mprotect", 10, 226, "ld.so, thread stacks, JIT compilers"),
    Allow("madvise", 28, 233, "malloc and numpy: huge pages, giving memory back; see RULES"),
    Allow("mincore", 27, 232, "profilers and C libraries probing own pages"),
    Allow("msync", 26, 227, "mmap.flush"),
    Allow("mlock", 149, 228, "crypto libraries keep keys out of swap; bounded by an rlimit"),
    Allow("mlock2", 325, 284, "as mlock, with flags"),
    Allow("munlock", 150, 229, "undoes mlock"),
    Allow("mseal", 462, 462, "newer ld.so seals its own mappings"),
    Allow("map_shadow_stack", 453, 453, "newer C libraries: shadow stacks for threads"),
    Allow("membarrier", 324, 283, "native threads: cheap barriers"),
    Allow("pkey_alloc", 330, 289, "memory protection keys; they only narrow access"),
    Allow("pkey_free", 331, 290, "undoes pkey_alloc"),
    Allow("pkey_mprotect", 329, 288, "as mprotect, with a key"),
    # Processes and threads
    Allow("clone", 56, 220, "os.fork and threads; no namespace flag passes, see RULES"),
    Allow("fork", 57, None, "os.fork of other C libraries"),
    Allow("vfork", 58, None, "subprocess of newer Pythons"),
    Allow("execve", 59, 221, "subprocess; set-user-id files gain nothing under no_new_privs"),
    Allow("execveat", 322, 281, "os.execve of a descriptor"),
    Allow("exit", 60, 93, "end of a thread"),
    Allow("exit_group", 231, 94, "end of a process"),
    Allow("wait4", 61, 260, "subprocess, os.wait"),
    Allow("waitid", 247, 95, "os.waitid, multiprocessing"),
    Allow("pidfd_open", 434, 434, "os.pidfd_open; asyncio child watcher"),
    Allow("pidfd_send_signal", 424, 424, "signal.pidfd_send_signal; bounded by the pid namespace"),
    Allow("set_tid_address", 218, 96, "start of every process"),
    Allow("set_robust_list", 273, 99, "libc: locks of threads that die"),
    Allow("get_robust_list", 274, 100, "libc and debuggers of own threads"),
    Allow("rseq", 334, 293, "libc registers it in every thread"),
    Allow("arch_prctl", 158, None, "libc sets the thread pointer; see RULES"),
    Allow("landlock_create_ruleset", 444, 444, "a branch gives up writing to the original's files"),
    Allow("landlock_add_rule", 445, 445, "as above; a ruleset takes rights, and gives none"),
    Allow("landlock_restrict_self", 446, 446, "as above"),
    Allow("prctl", 157, 167, "thread names, PR_SET_PDEATHSIG; common options only, see RULES"),
    Allow("futex", 202, 98, "threading.Lock and the GIL"),
    Allow("futex_wait", 455, 455, "futex of newer C libraries"),
    Allow("futex_wake", 454, 454, "futex of newer C libraries"),
    Allow("futex_requeue", 456, 456, "futex of newer C libraries"),
    Allow("futex_waitv", 449, 449, "waiting on several locks"),
    Allow("getpid", 39, 172, "os.getpid"),
    Allow("getppid", 110, 173, "os.getppid"),
    Allow("gettid", 186, 178, "threading.get_native_id"),
    Allow("getpgid", 121, 155, "os.getpgid"),
    Allow("getpgrp", 111, None, "os.getpgrp"),
    Allow("setpgid", 109, 154, "subprocess process_group; shells"),
    Allow("getsid", 124, 156, "os.getsid"),
    Allow("setsid", 112, 157, "subprocess start_new_session"),
    Allow("getuid", 102, 174, "os.getuid; expanduser"),
    Allow("geteuid", 107, 175, "os.geteuid"),
    Allow("getgid", 104, 176, "os.getgid"),
    Allow("getegid", 108, 177, "os.getegid"),
    Allow("getresuid", 118, 148, "os.getresuid"),
    Allow("getresgid", 120, 150, "os.getresgid"),
    Allow("setuid", 105, 146, "to the own ids only, for want of capabilities"),
    Allow("setgid", 106, 144, "to the own ids only, for want of capabilities"),
    Allow("setreuid", 113, 145, "to the own ids only, for want of capabilities"),
    Allow("setregid", 114, 143, "to the own ids only, for want of capabilities"),
    Allow("setresuid", 117, 147, "to the own ids only, for want of capabilities"),
    Allow("setresgid", 119, 149, "to the own ids only, for want of capabilities"),
    Allow("getgroups", 115, 158, "os.getgroups"),
    Allow("capget", 125, 90, "libraries ask what they may do; reads only"),
    Allow("ioprio_get", 252, 31, "psutil.Process.ionice"),
    Allow("getpriority", 140, 141, "os.getpriority"),
    Allow("getrlimit", 97, 163, "resource.getrlimit"),
    Allow("setrlimit", 160, 164, "resource.setrlimit; hard limits only go down"),
    Allow("prlimit64", 302, 261, "resource of newer C libraries; the own limits only, see RULES"),
    Allow("getrusage", 98, 165, "resource.getrusage"),
    Allow("times", 100, 153, "os.times"),
    Allow("sysinfo", 99, 179, "memory size; os.getloadavg"),
    Allow("uname", 63, 160, "platform"),
    Allow("getcpu", 309, 168, "allocators and numpy: which processor"),
    Allow("sched_yield", 24, 124, "time.sleep(0), spin locks"),
    Allow("sched_getaffinity", 204, 123, "os.cpu_count, joblib, OpenMP"),
    Allow("sched_setaffinity", 203, 122, "OpenMP and torch pin own threads"),
    Allow("sched_getparam", 143, 121, "threading libraries read their own policy"),
    Allow("sched_getscheduler", 145, 120, "threading libraries read their own policy"),
    Allow("sched_getattr", 315, 275, "chrt and threading libraries read their own policy"),
    Allow("sched_setparam", 142, 118, "threading libraries set the one priority that there is"),
    Allow("setpriority", 141, 140, "os.nice; an rlimit lets it only go down, and see RULES"),
    Allow("sched_get_priority_max", 146, 125, "os.sched_get_priority_max"),
    Allow("sched_get_priority_min", 147, 126, "os.sched_get_priority_min"),
    Allow("sched_rr_get_interval", 148, 127, "os.sched_rr_get_interval"),
    # Signals
    Allow("rt_sigaction", 13, 134, "signal.signal; start of CPython"),
    Allow("rt_sigprocmask", 14, 135, "signal.pthread_sigmask; around every fork"),
    Allow("rt_sigreturn", 15, 139, "return from every handler"),
    Allow("rt_sigpending", 127, 136, "signal.sigpending"),
    Allow("rt_sigsuspend", 130, 133, "sigsuspend in shells"),
    Allow("rt_sigtimedwait", 128, 137, "signal.sigwait"),
    Allow("rt_sigqueueinfo", 129, 138, "signals with a value; bounded by the pid namespace"),
    Allow("rt_tgsigqueueinfo", 297, 240, "as rt_sigqueueinfo, to a thread"),
    Allow("sigaltstack", 131, 132, "faulthandler; stack overflow in native code"),
    Allow("kill", 62, 129, "os.kill; not everybody at once, see RULES"),
    Allow("tkill", 200, 130, "old form of tgkill"),
    Allow("tgkill", 234, 131, "raise, abort, signal.pthread_kill"),
    Allow("pause", 34, None, "signal.pause"),
    Allow("restart_syscall", 219, 128, "the kernel resumes interrupted sleeps by it"),
    # Time
    Allow("time", 201, None, "time.time without the vDSO"),
    Allow("gettimeofday", 96, 169, "time.time without the vDSO"),
    Allow("clock_gettime", 228, 113, "time.monotonic and all clocks without the vDSO"),
    Allow("clock_getres", 229, 114, "time.get_clock_info"),
    Allow("clock_nanosleep", 230, 115, "time.sleep"),
    Allow("nanosleep", 35, 101, "sleep in shells and native code"),
    Allow("alarm", 37, None, "signal.alarm"),
    Allow("getitimer", 36, 102, "signal.getitimer"),
    Allow("setitimer", 38, 103, "signal.setitimer"),
    Allow("timer_create", 222, 107, "timers of native code"),
    Allow("timer_delete", 226, 111, "timers of native code"),
    Allow("timer_getoverrun", 225, 109, "timers of native code"),
    Allow("timer_gettime", 224, 108, "timers of native code"),
    Allow("timer_settime", 223, 110, "timers of native code"),
    Allow("getrandom", 318, 278, "hash seed, os.urandom, secrets"),
    # Sockets; the network namespace has only its own loopback
    Allow("socket", 41, 198, "local servers and clients; kinds are limited, see RULES"),
    Allow("socketpair", 53, 199, "asyncio wakes its loop by it; AF_UNIX only, see RULES"),
    Allow("bind", 49, 200, "servers inside the session"),
    Allow("listen", 50, 201, "servers inside the session"),
    Allow("accept", 43, 202, "servers inside the session"),
    Allow("accept4", 288, 242, "socket.accept"),
    Allow("connect", 42, 203, "clients of servers inside the session; fails at once elsewhere"),
    Allow("getsockname", 51, 204, "socket.getsockname"),
    Allow("getpeername", 52, 205, "socket.getpeername"),
    Allow("getsockopt", 55, 209, "socket.getsockopt"),
    Allow("setsockopt", 54, 208, "socket.setsockopt; common options only, see RULES"),
    Allow("sendto", 44, 206, "socket.send; not out of band, see RULES"),
    Allow("recvfrom", 45, 207, "socket.recv"),
    Allow("sendmsg", 46, 211, "multiprocessing hands over descriptors"),
    Allow("recvmsg", 47, 212, "multiprocessing takes over descriptors"),
    Allow("sendmmsg", 307, 269, "the resolver asks for both address families at once"),
    Allow("recvmmsg", 299, 243, "the receiving side of sendmmsg"),
    Allow("shutdown", 48, 210, "socket.shutdown"),
)

# Columns: name, number on x86-64, number on aarch64, consequence of allowing it.
REFUSE: Final[tuple[Refuse, ...]] = (
    # Namespaces and mounts: the walls of the jail
    Refuse("unshare", 272, 97, "a nested user namespace opens the kernel code that root may reach"),
    Refuse("setns", 308, 268, "joins another namespace"),
    Refuse("chroot", 161, 51, "the way out of a badly made root"),
    Refuse("pivot_root", 155, 41, "exchanges the root"),
    Refuse("mount", 165, 40, "changes the view of files"),
    Refuse("umount2", 166, 39, "uncovers what a mount hides"),
    Refuse("open_tree", 428, 428, "detached copies of mounts"),
    Refuse("open_tree_attr", 467, 467, "detached copies of mounts with other flags"),
    Refuse("move_mount", 429, 429, "attaches a mount"),
    Refuse("mount_setattr", 442, 442, "makes a read-only mount writable"),
    Refuse("fsopen", 430, 430, "new mounts by descriptor"),
    Refuse("fsconfig", 431, 431, "new mounts by descriptor"),
    Refuse("fsmount", 432, 432, "new mounts by descriptor"),
    Refuse("fspick", 433, 433, "reconfigures a mounted file system"),
    Refuse("statmount", 457, 457, "reads mounts outside the root"),
    Refuse("listmount", 458, 458, "reads mounts outside the root"),
    Refuse("sethostname", 170, 161, "the host name belongs to the session's maker"),
    Refuse("setdomainname", 171, 162, "the domain name belongs to the session's maker"),
    # Credentials and privileges
    Refuse("capset", 126, 91, "capabilities were given up and stay so"),
    Refuse("setfsuid", 122, 151, "one uid for the session's life"),
    Refuse("setfsgid", 123, 152, "one gid for the session's life"),
    Refuse("setgroups", 116, 159, "groups decide access to files"),
    Refuse("personality", 135, 92, "switches off address randomisation, or the 64-bit view"),
    Refuse("seccomp", 317, 277, "a filter with a listener answers calls in another's name"),
    Refuse("lsm_get_self_attr", 459, 459, "security labels are not the session's business"),
    Refuse("lsm_set_self_attr", 460, 460, "changes the security label"),
    Refuse("lsm_list_modules", 461, 461, "tells which security modules the host runs"),
    # Other processes
    Refuse("ptrace", 101, 117, "reads and steers another process"),
    Refuse("process_vm_readv", 310, 270, "reads another process's memory"),
    Refuse("process_vm_writev", 311, 271, "writes another process's memory"),
    Refuse("process_madvise", 440, 440, "acts on another process's memory"),
    Refuse("process_mrelease", 448, 448, "acts on another process's memory"),
    Refuse("pidfd_getfd", 438, 438, "takes a descriptor out of another process"),
    Refuse("kcmp", 312, 272, "compares kernel pointers of two processes"),
    Refuse("perf_event_open", 298, 241, "a wide attack surface; sees other processes"),
    Refuse(
        "userfaultfd", 323, 282, "stops the kernel while it copies memory: a common aid of exploits"
    ),
    Refuse("memfd_secret", 447, 447, "memory that nothing outside can inspect; unused by Python"),
    # Asynchronous I/O: one entry to many calls, past this filter
    Refuse("io_uring_setup", 425, 425, "runs calls past this filter; long list of kernel bugs"),
    Refuse("io_uring_enter", 426, 426, "runs calls past this filter; long list of kernel bugs"),
    Refuse("io_uring_register", 427, 427, "runs calls past this filter; long list of kernel bugs"),
    Refuse("io_setup", 206, 0, "old asynchronous I/O: unused by Python, past flaws"),
    Refuse("io_destroy", 207, 1, "old asynchronous I/O: unused by Python, past flaws"),
    Refuse("io_submit", 209, 2, "old asynchronous I/O: unused by Python, past flaws"),
    Refuse("io_cancel", 210, 3, "old asynchronous I/O: unused by Python, past flaws"),
    Refuse("io_getevents", 208, 4, "old asynchronous I/O: unused by Python, past flaws"),
    Refuse("io_pgetevents", 333, 292, "old asynchronous I/O: unused by Python, past flaws"),
    # Pages moved by reference: writes to the page cache of read-only files
    Refuse("splice", 275, 76, "page-cache writes (CVE-2022-0847 and its successors)"),
    Refuse("tee", 276, 77, "page-cache writes (CVE-2022-0847 and its successors)"),
    Refuse("vmsplice", 278, 75, "page-cache writes (CVE-2022-0847 and its successors)"),
    Refuse("sendfile", 40, 71, "as splice; copies of files use read and write instead"),
    Refuse("cachestat", 451, 451, "tells which host files are in memory"),
    # Code and state of the kernel
    Refuse("bpf", 321, 280, "programs inside the kernel"),
    Refuse("init_module", 175, 105, "loads kernel code"),
    Refuse("finit_module", 313, 273, "loads kernel code"),
    Refuse("delete_module", 176, 106, "unloads kernel code"),
    Refuse("create_module", 174, None, "removed long ago; loads kernel code"),
    Refuse("query_module", 178, None, "removed long ago; asks about kernel code"),
    Refuse("get_kernel_syms", 177, None, "removed long ago; kernel addresses"),
    Refuse("kexec_load", 246, 104, "starts another kernel"),
    Refuse("kexec_file_load", 320, 294, "starts another kernel"),
    Refuse("reboot", 169, 142, "ends the machine"),
    Refuse("syslog", 103, 116, "reads the kernel log, with addresses"),
    Refuse("uretprobe", 335, None, "for the kernel's own trampoline only"),
    Refuse("uprobe", 336, None, "for the kernel's own trampoline only"),
    Refuse("_sysctl", 156, None, "removed long ago; sets kernel parameters"),
    Refuse("sysfs", 139, None, "obsolete; lists the file systems of the kernel"),
    Refuse("nfsservctl", 180, 42, "removed long ago; NFS server"),
    Refuse("lookup_dcookie", 212, 18, "profiler's paths of other processes"),
    Refuse("uselib", 134, None, "obsolete; maps a library by an old, flawed loader"),
    # Keys: not divided by any namespace
    Refuse("add_key", 248, 217, "keyrings cross sessions (CVE-2016-0728)"),
    Refuse("request_key", 249, 218, "keyrings cross sessions; starts a helper on the host"),
    Refuse("keyctl", 250, 219, "keyrings cross sessions (CVE-2016-0728)"),
    # Clocks, accounting, quotas, swap of the whole machine
    Refuse("settimeofday", 164, 170, "sets the machine's clock"),
    Refuse("clock_settime", 227, 112, "sets the machine's clock"),
    Refuse("clock_adjtime", 305, 266, "steers the machine's clock"),
    Refuse("adjtimex", 159, 171, "steers the machine's clock"),
    Refuse("stime", None, None, "sets the machine's clock; 32-bit only"),
    Refuse("acct", 163, 89, "writes a log of all processes"),
    Refuse("quotactl", 179, 60, "disk quotas of the machine"),
    Refuse("quotactl_fd", 443, 443, "disk quotas of the machine"),
    Refuse("swapon", 167, 224, "swap of the machine"),
    Refuse("swapoff", 168, 225, "swap of the machine"),
    Refuse("vhangup", 153, 58, "hangs up the terminal of the host"),
    # Files outside the view, special files, stored attributes
    Refuse("name_to_handle_at", 303, 264, "handles lead past the mount view"),
    Refuse("open_by_handle_at", 304, 265, "opens past the mount view"),
    Refuse("mknod", 133, None, "devices and named pipes outside the maker's list"),
    Refuse("mknodat", 259, 33, "devices and named pipes outside the maker's list"),
    Refuse("fanotify_init", 300, 262, "sees accesses by others"),
    Refuse("fanotify_mark", 301, 263, "sees accesses by others"),
    Refuse("ustat", 136, None, "old; tells about devices"),
    Refuse("setxattr", 188, 5, "stored outside the quota of the workspace"),
    Refuse("lsetxattr", 189, 6, "stored outside the quota of the workspace"),
    Refuse("fsetxattr", 190, 7, "stored outside the quota of the workspace"),
    Refuse("setxattrat", 463, 463, "stored outside the quota of the workspace"),
    Refuse("removexattr", 197, 14, "takes security attributes off"),
    Refuse("lremovexattr", 198, 15, "takes security attributes off"),
    Refuse("fremovexattr", 199, 16, "takes security attributes off"),
    Refuse("removexattrat", 466, 466, "takes security attributes off"),
    Refuse("getxattrat", 464, 464, "new path form; getxattr serves"),
    Refuse("listxattrat", 465, 465, "new path form; listxattr serves"),
    # Memory outside all limits: it belongs to no process, and to no mount with a size. Python uses
    # none of it (multiprocessing works in /dev/shm), so this table departs from reference lists
    # that allow it.
    Refuse(
        "memfd_create", 319, 279, "unmapped, it counts nowhere; the host makes those of the wire"
    ),
    Refuse("shmget", 29, 194, "segments outlive their processes, and nothing counts those"),
    Refuse("shmat", 30, 196, "segments outlive their processes, and nothing counts those"),
    Refuse("shmdt", 67, 197, "segments outlive their processes, and nothing counts those"),
    Refuse("shmctl", 31, 195, "segments outlive their processes, and nothing counts those"),
    Refuse("semget", 64, 190, "up to 60 GiB of kernel memory that counts for no process"),
    Refuse("semop", 65, 193, "up to 60 GiB of kernel memory that counts for no process"),
    Refuse("semtimedop", 220, 192, "up to 60 GiB of kernel memory that counts for no process"),
    Refuse("semctl", 66, 191, "up to 60 GiB of kernel memory that counts for no process"),
    Refuse("msgget", 68, 186, "queues hold kernel memory that counts for no process"),
    Refuse("msgsnd", 69, 189, "queues hold kernel memory that counts for no process"),
    Refuse("msgrcv", 70, 188, "queues hold kernel memory that counts for no process"),
    Refuse("msgctl", 71, 187, "queues hold kernel memory that counts for no process"),
    Refuse("mq_open", 240, 180, "queues hold kernel memory that counts for no process"),
    Refuse("mq_unlink", 241, 181, "queues hold kernel memory that counts for no process"),
    Refuse("mq_timedsend", 242, 182, "queues hold kernel memory that counts for no process"),
    Refuse("mq_timedreceive", 243, 183, "queues hold kernel memory that counts for no process"),
    Refuse("mq_notify", 244, 184, "queues hold kernel memory that counts for no process"),
    Refuse("mq_getsetattr", 245, 185, "queues hold kernel memory that counts for no process"),
    # Scheduling and placement of memory: shares of the machine
    Refuse("sched_setscheduler", 144, 119, "real-time classes starve the host"),
    Refuse("sched_setattr", 314, 274, "real-time and deadline classes starve the host"),
    Refuse("ioprio_set", 251, 30, "the share of the disk is the host's to set"),
    Refuse("mbind", 237, 235, "placement of memory is the host's; numpy and torch go on without"),
    Refuse("set_mempolicy", 238, 237, "placement of memory is the host's"),
    Refuse("get_mempolicy", 239, 236, "placement of memory is the host's; tells where pages lie"),
    Refuse("set_mempolicy_home_node", 450, 450, "placement of memory is the host's"),
    Refuse("migrate_pages", 256, 238, "moves pages of other processes"),
    Refuse("move_pages", 279, 239, "moves pages of other processes; tells where they lie"),
    Refuse("remap_file_pages", 216, 234, "deprecated; past flaws in the memory code"),
    # Hardware and old processor modes
    Refuse("ioperm", 173, None, "access to I/O ports"),
    Refuse("iopl", 172, None, "access to all I/O ports"),
    Refuse("modify_ldt", 154, None, "16-bit segments: past flaws in the entry code"),
    Refuse("vm86", None, None, "virtual 8086 mode; 32-bit only"),
    Refuse("vm86old", None, None, "virtual 8086 mode; 32-bit only"),
    # Flags behind a pointer, which no filter can read
    Refuse("clone3", 435, 435, "hides its flags; ENOSYS makes the C library use clone", ENOSYS),
    # Calls of the kernel that a session goes without, like those that the table does not know
    Refuse("sync", 162, 81, "writes back the files of the whole machine", ENOSYS),
    Refuse("syncfs", 306, 267, "writes back files of others; fsync serves", ENOSYS),
    Refuse("mlockall", 151, 230, "locks memory without end; mlock serves", ENOSYS),
    Refuse("munlockall", 152, 231, "undoes mlockall", ENOSYS),
    Refuse("inotify_init", 253, None, "old form of inotify_init1", ENOSYS),
    Refuse("file_getattr", 468, 468, "attributes that file systems add", ENOSYS),
    Refuse("file_setattr", 469, 469, "attributes that file systems add", ENOSYS),
    Refuse("listns", 470, 470, "lists namespaces outside", ENOSYS),
    Refuse("set_thread_area", 205, None, "32-bit only", ENOSYS),
    Refuse("get_thread_area", 211, None, "32-bit only", ENOSYS),
    Refuse("epoll_ctl_old", 214, None, "never was in any kernel", ENOSYS),
    Refuse("epoll_wait_old", 215, None, "never was in any kernel", ENOSYS),
    Refuse("getpmsg", 181, None, "never was in any kernel", ENOSYS),
    Refuse("putpmsg", 182, None, "never was in any kernel", ENOSYS),
    Refuse("afs_syscall", 183, None, "never was in any kernel", ENOSYS),
    Refuse("tuxcall", 184, None, "never was in any kernel", ENOSYS),
    Refuse("security", 185, None, "never was in any kernel", ENOSYS),
    Refuse("vserver", 236, None, "never was in any kernel", ENOSYS),
)
