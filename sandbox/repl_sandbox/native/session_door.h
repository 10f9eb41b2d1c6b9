/* What code in a session asks of the process that answers for its filter (zygote/fork_limiter.py).

   A request is a dup(2) of a descriptor that cannot exist, whose further arguments, which the
   kernel does not read, are the request's. The answer is a new descriptor. Without a process that
   answers, the call fails with EBADF. */
#ifndef REPL_SESSION_DOOR_H
#define REPL_SESSION_DOOR_H

#include "kernel.h"

#define DOOR 0x7e5e5510

enum {
    OPEN_PROC = 1, /* a file below /proc/PID: its process, and its name in two words */
    LISTEN = 2,    /* a queue of connections: its number */
    CONNECT = 3,   /* one end of a connection, whose other goes into a queue: its number */
    LIST_PROC = 4, /* a pipe with the numbers of the session's processes, 4 bytes each */
};

static inline long ask_door(long request, long number, long a, long b, long flags) {
    return system_call(SYS_DUP, DOOR, request, number, a, b, flags);
}

#endif
