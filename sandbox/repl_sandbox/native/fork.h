/* Forks without a C library, and forks with the hooks of CPython, laid out by native/forks.py. */
#ifndef REPL_FORK_H
#define REPL_FORK_H

#include "kernel.h"

enum { NO_CGROUP = -1 };

long fork_process(u64 flags, int cgroup, int *thread_id);

struct hooked_fork {
    void (*before)(void);          /* PyOS_BeforeFork */
    int (*fork)(void);             /* of the C library, which repairs its own locks */
    void (*after_in_child)(void);  /* PyOS_AfterFork_Child */
    void (*after_in_parent)(void); /* PyOS_AfterFork_Parent */
    const int *error;              /* errno of the calling thread */
};

#endif
