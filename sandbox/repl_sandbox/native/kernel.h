/* System calls without a C library: the call, and the numbers and structures used here.

   Numbers and names are those of the kernel's uapi headers. A result between -4095 and -1 is the
   negative of an errno. */
#ifndef REPL_KERNEL_H
#define REPL_KERNEL_H

typedef unsigned long long u64; /* 64 bits on both machines, as are long and pointers */

#if defined(__x86_64__)

enum {
    SYS_ACCEPT4 = 288,
    SYS_BIND = 49,
    SYS_CLONE = 56,
    SYS_CLONE3 = 435,
    SYS_CLOSE = 3,
    SYS_CLOSE_RANGE = 436,
    SYS_CONNECT = 42,
    SYS_DUP = 32,
    SYS_DUP3 = 292,
    SYS_EXIT_GROUP = 231,
    SYS_FCNTL = 72,
    SYS_FTRUNCATE = 77,
    SYS_GETDENTS64 = 217,
    SYS_GETGID = 104,
    SYS_GETPID = 39,
    SYS_GETRANDOM = 318,
    SYS_GETSOCKNAME = 51,
    SYS_GETSOCKOPT = 55,
    SYS_GETUID = 102,
    SYS_KILL = 62,
    SYS_LINKAT = 265,
    SYS_LISTEN = 50,
    SYS_LSEEK = 8,
    SYS_MKDIRAT = 258,
    SYS_MMAP = 9,
    SYS_MUNMAP = 11,
    SYS_OPENAT = 257,
    SYS_PPOLL = 271,
    SYS_PRCTL = 157,
    SYS_READ = 0,
    SYS_RECVMSG = 47,
    SYS_RENAMEAT2 = 316,
    SYS_RT_SIGPROCMASK = 14,
    SYS_RT_SIGTIMEDWAIT = 128,
    SYS_SETPGID = 109,
    SYS_SOCKET = 41,
    SYS_SOCKETPAIR = 53,
    SYS_UNLINKAT = 263,
    SYS_WRITE = 1,
};

static inline long system_call(long number, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

#elif defined(__aarch64__)

enum {
    SYS_ACCEPT4 = 242,
    SYS_BIND = 200,
    SYS_CLONE = 220,
    SYS_CLONE3 = 435,
    SYS_CLOSE = 57,
    SYS_CLOSE_RANGE = 436,
    SYS_CONNECT = 203,
    SYS_DUP = 23,
    SYS_DUP3 = 24,
    SYS_EXIT_GROUP = 94,
    SYS_FCNTL = 25,
    SYS_FTRUNCATE = 46,
    SYS_GETDENTS64 = 61,
    SYS_GETGID = 176,
    SYS_GETPID = 172,
    SYS_GETRANDOM = 278,
    SYS_GETSOCKNAME = 204,
    SYS_GETSOCKOPT = 209,
    SYS_GETUID = 174,
    SYS_KILL = 129,
    SYS_LINKAT = 37,
    SYS_LISTEN = 201,
    SYS_LSEEK = 62,
    SYS_MKDIRAT = 34,
    SYS_MMAP = 222,
    SYS_MUNMAP = 215,
    SYS_OPENAT = 56,
    SYS_PPOLL = 73,
    SYS_PRCTL = 167,
    SYS_READ = 63,
    SYS_RECVMSG = 212,
    SYS_RENAMEAT2 = 276,
    SYS_RT_SIGPROCMASK = 135,
    SYS_RT_SIGTIMEDWAIT = 137,
    SYS_SETPGID = 154,
    SYS_SOCKET = 198,
    SYS_SOCKETPAIR = 199,
    SYS_UNLINKAT = 35,
    SYS_WRITE = 64,
};

static inline long system_call(long number, long a, long b, long c, long d, long e, long f) {
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc #0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory");
    return x0;
}

#else
#error "no system-call numbers for this architecture; add them to native/kernel.h"
#endif

enum {
    EPERM = 1,
    ENOENT = 2,
    EINTR = 4,
    EBADF = 9,
    EAGAIN = 11,
    EACCES = 13,
    EEXIST = 17,
    EINVAL = 22,
    ERANGE = 34,
    ENAMETOOLONG = 36,
    ENOSYS = 38,
    EAFNOSUPPORT = 97,
    EADDRINUSE = 98,
    ECONNREFUSED = 111,
    LARGEST_ERRNO = 4095,

    SIGKILL = 9,
    SIGCHLD = 17,
    SIG_SETMASK = 2,
    SIGNAL_SET_SIZE = 8,

    POLLIN = 1,
};

#define CLONE_CHILD_CLEARTID 0x00200000ULL
#define CLONE_CHILD_SETTID 0x01000000ULL
#define CLONE_INTO_CGROUP 0x200000000ULL
#define EVERY_SIGNAL (~0ULL)

struct pollfd {
    int fd;
    short events, revents;
};

static inline void set_signal_mask(u64 mask, u64 *before) {
    system_call(SYS_RT_SIGPROCMASK, SIG_SETMASK, (long)&mask, (long)before, SIGNAL_SET_SIZE, 0, 0);
}

/* Wait until a descriptor is readable, or a signal arrives that `mask` does not block. */
static inline long wait_for_input(struct pollfd *awaited, long count, u64 mask) {
    return system_call(SYS_PPOLL, (long)awaited, count, 0, (long)&mask, SIGNAL_SET_SIZE, 0);
}

__attribute__((noreturn)) static inline void exit_process(int status) {
    for (;;)
        system_call(SYS_EXIT_GROUP, status, 0, 0, 0, 0, 0);
}

#endif
