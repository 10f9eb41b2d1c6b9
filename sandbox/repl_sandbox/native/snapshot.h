/* A snapshot of a worker, and the worker's work at its fork, laid out by native/forks.py. */
#ifndef REPL_SNAPSHOT_H
#define REPL_SNAPSHOT_H

#include "kernel.h"

/* Work of the worker after the fork: make the snapshot valid in the table that the worker shares
   with init, kill the snapshot that became obsolete, and wait for the host. */
struct post_fork_work {
    int *child;             /* receives the snapshot's process id */
    unsigned char *half;    /* receives `valid_half` then: the half of the table that is valid */
    unsigned char valid_half;
    int ended;              /* process id of the snapshot to kill, or 0 */
    u64 mask;               /* signals that are blocked while the worker waits */
    struct pollfd host;
};

struct snapshot {
    int first_closed;       /* descriptors from this number on are closed in the snapshot */
    int wake_signal;        /* the signal that activates the snapshot */
    int *thread_id;         /* as of fork_process */
    struct post_fork_work *work; /* or null: the worker returns at once */
};

#endif
