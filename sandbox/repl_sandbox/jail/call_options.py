"""Options of calls with many: the allowed ones, by table, with a reason each.

`prctl`, `ioctl`, `fcntl`, `setsockopt` and `arch_prctl` are each some hundred calls behind one
number, and the kernel adds to them with every version. So an option without a row does not exist in
a session, like a system call without one; `syscalls.RULES` says with which errno it fails.

Numbers are Linux's own, whatever system imports this module: uapi/linux/prctl.h,
uapi/asm-generic/ioctls.h, uapi/linux/sockios.h, uapi/linux/fs.h, uapi/linux/fcntl.h,
uapi/asm-generic/fcntl.h, uapi/asm-generic/socket.h, uapi/linux/in.h, in6.h, tcp.h, and
arch/x86/include/uapi/asm/prctl.h.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Option(NamedTuple):
    """An option, its number, and its use in a session."""

    name: str
    number: int
    reason: str


def numbers(options: tuple[Option, ...]) -> tuple[int, ...]:
    """Return the numbers of `options`, in order."""
    return tuple(sorted({option.number for option in options}))


# Left out, by kind: filters (PR_SET_SECCOMP), privileges (PR_CAP_AMBIENT, PR_SET_SECUREBITS,
# PR_SET_IO_FLUSHER), pages that tell of other sessions (PR_SET_MEMORY_MERGE), siblings of a
# processor (PR_SCHED_CORE), the kernel's memory (PR_FUTEX_HASH: 64 bytes for each of as many
# buckets as the caller names, in no limit), the shape of a process (PR_SET_MM), tracers
# (PR_SET_PTRACER), and modes of old or other processors.
PRCTL_OPTIONS: Final = (
    Option("PR_SET_PDEATHSIG", 1, "children that end with their parent"),
    Option("PR_GET_PDEATHSIG", 2, "reads the same"),
    Option("PR_GET_DUMPABLE", 3, "reads whether others of the uid may look in"),
    Option("PR_SET_DUMPABLE", 4, "programs with keys hide their memory; exec makes it visible"),
    Option("PR_GET_KEEPCAPS", 7, "libcap reads it"),
    Option("PR_SET_NAME", 15, "names of threads; Python sets them from 3.14 on"),
    Option("PR_GET_NAME", 16, "names of threads"),
    Option("PR_GET_SECCOMP", 21, "programs ask whether they are under a filter"),
    Option("PR_CAPBSET_READ", 23, "libcap and containers' tools read it"),
    Option("PR_GET_TSC", 25, "reads whether the time-stamp counter may be read"),
    Option("PR_GET_SECUREBITS", 27, "libcap reads it"),
    Option("PR_SET_TIMERSLACK", 29, "how late own timers may be"),
    Option("PR_GET_TIMERSLACK", 30, "reads the same"),
    Option("PR_SET_CHILD_SUBREAPER", 36, "supervisors adopt their orphans, as tini does"),
    Option("PR_GET_CHILD_SUBREAPER", 37, "reads the same"),
    Option("PR_SET_NO_NEW_PRIVS", 38, "set already, and stays so"),
    Option("PR_GET_NO_NEW_PRIVS", 39, "reads the same"),
    Option("PR_SET_THP_DISABLE", 41, "jemalloc and databases go without huge pages"),
    Option("PR_GET_THP_DISABLE", 42, "reads the same"),
    Option("PR_SVE_SET_VL", 50, "aarch64: own vector length"),
    Option("PR_SVE_GET_VL", 51, "aarch64: BLAS and torch choose code by the vector length"),
    Option("PR_GET_SPECULATION_CTRL", 52, "JITs ask for the processor's mitigations"),
    Option("PR_SET_TAGGED_ADDR_CTRL", 55, "aarch64: malloc tags own memory"),
    Option("PR_GET_TAGGED_ADDR_CTRL", 56, "reads the same"),
    Option("PR_SME_GET_VL", 64, "aarch64: BLAS chooses code by the matrix unit's length"),
    Option("PR_GET_MDWE", 66, "JITs ask whether they may make code"),
    Option("PR_GET_SHADOW_STACK_STATUS", 74, "aarch64: the C library's shadow stacks"),
    Option("PR_SET_SHADOW_STACK_STATUS", 75, "aarch64: the C library's shadow stacks"),
    Option("PR_LOCK_SHADOW_STACK_STATUS", 76, "aarch64: the C library's shadow stacks"),
    Option("PR_SET_VMA", 0x53564D41, "names of own mappings: the C library, Python, torch"),
    Option("PR_GET_AUXV", 0x41555856, "the C library and sanitizers read what exec passed"),
)

# x86-64 only. Left out: ARCH_SET_CPUID, which traps an instruction, and permissions of guests.
ARCH_PRCTL_OPTIONS: Final = (
    Option("ARCH_SET_GS", 0x1001, "own thread pointer of other runtimes"),
    Option("ARCH_SET_FS", 0x1002, "the C library's thread pointer"),
    Option("ARCH_GET_FS", 0x1003, "reads the same"),
    Option("ARCH_GET_GS", 0x1004, "reads the same"),
    Option("ARCH_GET_CPUID", 0x1011, "reads whether the processor may be asked"),
    Option("ARCH_GET_XCOMP_SUPP", 0x1021, "oneDNN and torch look for AMX"),
    Option("ARCH_GET_XCOMP_PERM", 0x1022, "oneDNN and torch look for AMX"),
    Option("ARCH_REQ_XCOMP_PERM", 0x1023, "oneDNN and torch use AMX"),
    Option("ARCH_GET_UNTAG_MASK", 0x4001, "sanitizers read how pointers are tagged"),
    Option("ARCH_SHSTK_ENABLE", 0x5001, "the C library's shadow stacks"),
    Option("ARCH_SHSTK_DISABLE", 0x5002, "the C library's shadow stacks"),
    Option("ARCH_SHSTK_LOCK", 0x5003, "the C library's shadow stacks"),
    Option("ARCH_SHSTK_STATUS", 0x5005, "the C library's shadow stacks"),
)

# Left out, by kind: typing into a terminal (TIOCSTI), its console, selection, keyboard and line
# disciplines (TIOCLINUX, TIOCCONS, TIOCSETD), signals to others (FIOASYNC, FIOSETOWN, SIOCSPGRP),
# settings of networks, descriptors of namespaces (NS_GET_USERNS, PIDFD_GET_INFO), and what file
# systems and devices add.
IOCTL_REQUESTS: Final = (
    Option("TCGETS", 0x5401, "isatty; termios.tcgetattr"),
    Option("TCSETS", 0x5402, "termios.tcsetattr on an own terminal"),
    Option("TCSETSW", 0x5403, "termios.tcsetattr, after what was written"),
    Option("TCSETSF", 0x5404, "termios.tcsetattr, and drops what was typed; tty.setraw"),
    Option("TCGETS2", 0x802C542A, "the same as TCGETS in newer C libraries"),
    Option("TCSETS2", 0x402C542B, "the same as TCSETS in newer C libraries"),
    Option("TCSETSW2", 0x402C542C, "the same as TCSETSW in newer C libraries"),
    Option("TCSETSF2", 0x402C542D, "the same as TCSETSF in newer C libraries"),
    Option("TCSBRK", 0x5409, "termios.tcdrain"),
    Option("TCSBRKP", 0x5425, "termios.tcsendbreak"),
    Option("TCXONC", 0x540A, "termios.tcflow"),
    Option("TCFLSH", 0x540B, "termios.tcflush"),
    Option("TIOCSCTTY", 0x540E, "pty.fork: the controlling terminal of a new session"),
    Option("TIOCNOTTY", 0x5422, "programs that leave their terminal"),
    Option("TIOCGPGRP", 0x540F, "shells: os.tcgetpgrp"),
    Option("TIOCSPGRP", 0x5410, "shells: os.tcsetpgrp"),
    Option("TIOCGSID", 0x5429, "shells: the session of a terminal"),
    Option("TIOCGWINSZ", 0x5413, "os.get_terminal_size"),
    Option("TIOCSWINSZ", 0x5414, "termios.tcsetwinsize; pexpect sets the size of its terminal"),
    Option("TIOCOUTQ", 0x5411, "bytes not yet sent, of terminals and sockets"),
    Option("FIONREAD", 0x541B, "bytes that wait, of pipes, sockets and terminals"),
    Option("TIOCGPTN", 0x80045430, "os.openpty, os.ptsname"),
    Option("TIOCSPTLCK", 0x40045431, "os.openpty, os.unlockpt"),
    Option("TIOCGPTLCK", 0x80045439, "reads whether a terminal is locked"),
    Option("TIOCGPTPEER", 0x5441, "os.openpty of newer C libraries"),
    Option("TIOCPKT", 0x5420, "terminal multiplexers"),
    Option("TIOCGPKT", 0x80045438, "terminal multiplexers"),
    Option("FIONCLEX", 0x5450, "os.set_inheritable"),
    Option("FIOCLEX", 0x5451, "os.set_inheritable"),
    Option("FIONBIO", 0x5421, "socket.setblocking, os.set_blocking"),
    Option("FIOQSIZE", 0x5460, "size of a file or directory"),
    Option("FS_IOC_GETFLAGS", 0x80086601, "lsattr and archivers read flags of files"),
    Option("FS_IOC_FIEMAP", 0xC020660B, "cp and databases look for holes of own files"),
    Option("PROCMAP_QUERY", 0xC0686611, "the engine and profilers read own mappings"),
    Option("SIOCGIFNAME", 0x8910, "socket.if_indextoname: the own loopback"),
    Option("SIOCGIFCONF", 0x8912, "lists the own loopback"),
    Option("SIOCGIFFLAGS", 0x8913, "psutil.net_if_stats: the own loopback"),
    Option("SIOCGIFADDR", 0x8915, "the address of the own loopback"),
    Option("SIOCGIFNETMASK", 0x891B, "the address of the own loopback"),
    Option("SIOCGIFMTU", 0x8921, "psutil.net_if_stats: the own loopback"),
    Option("SIOCGIFHWADDR", 0x8927, "uuid.getnode: the own loopback has none"),
    Option("SIOCETHTOOL", 0x8946, "psutil.net_if_stats: the own loopback"),
    Option("SIOCGIFINDEX", 0x8933, "socket.if_nametoindex: the own loopback"),
)

# Left out: leases and notes about files (F_SETLEASE, F_NOTIFY, F_SETDELEG), which delay or reveal
# others; larger pipes (F_SETPIPE_SZ), which take of what the kernel lets the host's user have for
# pipes; signals to a process of choice (F_SETOWN); seals.
FCNTL_COMMANDS: Final = (
    Option("F_DUPFD", 0, "os.dup above a number; shells"),
    Option("F_GETFD", 1, "os.get_inheritable"),
    Option("F_SETFD", 2, "os.set_inheritable"),
    Option("F_GETFL", 3, "os.get_blocking"),
    Option("F_SETFL", 4, "os.set_blocking, appending"),
    Option("F_GETLK", 5, "fcntl.lockf; sqlite asks for a holder"),
    Option("F_SETLK", 6, "fcntl.lockf; sqlite"),
    Option("F_SETLKW", 7, "fcntl.lockf that waits"),
    Option("F_GETOWN", 9, "reads who gets signals: nobody"),
    Option(
        "F_SETSIG", 10, "the engine marks standard streams; without F_SETOWN nobody is signalled"
    ),
    Option("F_GETSIG", 11, "the engine reads its marks of standard streams"),
    Option("F_OFD_GETLK", 36, "locks of an open file: databases"),
    Option("F_OFD_SETLK", 37, "locks of an open file: databases"),
    Option("F_OFD_SETLKW", 38, "locks of an open file: databases"),
    Option("F_GETLEASE", 1025, "reads the lease, of which there is none"),
    Option("F_DUPFD_QUERY", 1027, "whether two descriptors are one file"),
    Option("F_CREATED_QUERY", 1028, "whether this open made the file"),
    Option("F_DUPFD_CLOEXEC", 1030, "os.dup; every language's duplicates"),
    Option("F_GETPIPE_SZ", 1032, "programs size their buffers by the pipe"),
    Option("F_GET_SEALS", 1034, "whether shared memory may shrink"),
    Option("F_GET_RW_HINT", 1035, "databases: how long data lives"),
    Option("F_SET_RW_HINT", 1036, "databases: how long data lives"),
)

SOL_SOCKET: Final = 1
IPPROTO_IP: Final = 0
IPPROTO_TCP: Final = 6
IPPROTO_IPV6: Final = 41

# By level. Left out: programs that the kernel runs on incoming data (SO_ATTACH_FILTER and its kin),
# other protocols on top (TCP_ULP is kernel TLS, UDP_ENCAP is IPsec), keys, pages lent to the
# network (SO_ZEROCOPY), multicast and routing.
SOCKET_OPTIONS: Final[dict[int, tuple[Option, ...]]] = {
    SOL_SOCKET: (
        Option("SO_REUSEADDR", 2, "every server"),
        Option("SO_BROADCAST", 6, "socket libraries set it for datagrams"),
        Option("SO_SNDBUF", 7, "asyncio, zmq: size of a buffer"),
        Option("SO_RCVBUF", 8, "asyncio, zmq: size of a buffer"),
        Option("SO_KEEPALIVE", 9, "clients of databases and HTTP"),
        Option("SO_LINGER", 13, "servers that close at once"),
        Option("SO_REUSEPORT", 15, "servers with several processes"),
        Option("SO_PASSCRED", 16, "D-Bus and journals on pairs"),
        Option("SO_RCVLOWAT", 18, "event loops: wake by amount"),
        Option("SO_RCVTIMEO", 20, "time-outs of C libraries"),
        Option("SO_SNDTIMEO", 21, "time-outs of C libraries"),
    ),
    IPPROTO_TCP: (
        Option("TCP_NODELAY", 1, "asyncio, HTTP clients and servers"),
        Option("TCP_CORK", 3, "servers that gather their writes"),
        Option("TCP_KEEPIDLE", 4, "clients of databases"),
        Option("TCP_KEEPINTVL", 5, "clients of databases"),
        Option("TCP_KEEPCNT", 6, "clients of databases"),
        Option("TCP_DEFER_ACCEPT", 9, "gunicorn and nginx"),
        Option("TCP_QUICKACK", 12, "RPC libraries"),
        Option("TCP_USER_TIMEOUT", 18, "grpc and clients of databases"),
    ),
    IPPROTO_IP: (
        Option("IP_TOS", 1, "HTTP and RPC libraries"),
        Option("IP_TTL", 2, "tests of sockets"),
        Option("IP_RECVERR", 11, "the resolver of the C library"),
    ),
    IPPROTO_IPV6: (
        Option("IPV6_RECVERR", 25, "the resolver of the C library"),
        Option("IPV6_V6ONLY", 26, "servers on both families"),
    ),
}

# By their number in uapi/asm-generic/mman-common.h. Left out: MADV_MERGEABLE, by which the time of
# a write shows that another session has the same content; MADV_COLD and MADV_PAGEOUT, which push
# the interpreter's pages out for all sessions; MADV_COLLAPSE, which copies pages of its files;
# MADV_HWPOISON and MADV_SOFT_OFFLINE, which take memory from the machine.
MEMORY_ADVICE: Final = (
    Option("MADV_NORMAL", 0, "undoes the next two"),
    Option("MADV_RANDOM", 1, "databases in mapped files"),
    Option("MADV_SEQUENTIAL", 2, "readers of mapped files"),
    Option("MADV_WILLNEED", 3, "readers of mapped files"),
    Option("MADV_DONTNEED", 4, "malloc gives memory back"),
    Option("MADV_FREE", 8, "malloc gives memory back when it is needed"),
    Option("MADV_REMOVE", 9, "arrow and tmpfs: holes in own files"),
    Option("MADV_DONTFORK", 10, "RDMA and fork"),
    Option("MADV_DOFORK", 11, "undoes MADV_DONTFORK"),
    Option("MADV_UNMERGEABLE", 13, "the state that there is"),
    Option("MADV_HUGEPAGE", 14, "numpy, malloc"),
    Option("MADV_NOHUGEPAGE", 15, "malloc, Go"),
    Option("MADV_DONTDUMP", 16, "keys and large buffers in no core file"),
    Option("MADV_DODUMP", 17, "undoes MADV_DONTDUMP"),
    Option("MADV_WIPEONFORK", 18, "random generators of crypto libraries"),
    Option("MADV_KEEPONFORK", 19, "undoes MADV_WIPEONFORK"),
    Option("MADV_POPULATE_READ", 22, "allocators touch pages at once"),
    Option("MADV_POPULATE_WRITE", 23, "allocators touch pages at once"),
    Option("MADV_DONTNEED_LOCKED", 24, "as MADV_DONTNEED, of locked pages"),
    Option("MADV_GUARD_INSTALL", 102, "the C library: guards of thread stacks"),
    Option("MADV_GUARD_REMOVE", 103, "the C library: guards of thread stacks"),
)

# uapi/linux/fadvise.h. Left out: POSIX_FADV_DONTNEED, each use of which drops the interpreter's
# files from the page cache, for all sessions.
FILE_ADVICE: Final = (
    Option("POSIX_FADV_NORMAL", 0, "undoes the others"),
    Option("POSIX_FADV_RANDOM", 1, "databases"),
    Option("POSIX_FADV_SEQUENTIAL", 2, "cat, cp, sort"),
    Option("POSIX_FADV_WILLNEED", 3, "readers ahead"),
    Option("POSIX_FADV_NOREUSE", 5, "readers once"),
)

TABLES: Final[dict[str, tuple[Option, ...]]] = {
    "prctl": PRCTL_OPTIONS,
    "arch_prctl": ARCH_PRCTL_OPTIONS,
    "ioctl": IOCTL_REQUESTS,
    "fcntl": FCNTL_COMMANDS,
    "madvise": MEMORY_ADVICE,
    "fadvise64": FILE_ADVICE,
    **{f"setsockopt {level}": options for level, options in SOCKET_OPTIONS.items()},
}
