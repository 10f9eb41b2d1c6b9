/* Settings of the zygote for a new session's processes, laid out by native/forks.py. */
#ifndef REPL_SPAWN_H
#define REPL_SPAWN_H

#include "kernel.h"
#include "steps.h"

enum { AWAITED = 4 };

/* The process in which spawn_session returns. */
enum role { ZYGOTE, INIT, WORKER };

struct text {
    const char *start;
    long size;
};

struct spawn {
    u64 flags;            /* of clone(2): the new namespaces */
    long cgroup;          /* descriptor of the cgroup (version 2) of the child, or NO_CGROUP */
    int *thread_id;       /* where the C library keeps the id of its main thread, or null */
    int (*fork)(void);    /* of the C library, which runs its own handlers */
    int *error;           /* errno of the C library */
    long role;            /* out */
    long worker;          /* out, in init: the worker's process id */
    struct batch spawn_steps; /* before the first worker is forked */
    struct batch init;
    struct batch first_worker;
    long awaited_count;   /* 0: init returns after its steps */
    struct pollfd awaited[AWAITED]; /* descriptors on which init waits for input */
    u64 worker_mask;      /* signals that are blocked in a first worker until it returns */
    long control;         /* descriptor that the worker sends `report` to, and closes then */
    struct pollfd host;   /* socket that the worker sends `ready` to; fd -1: the worker returns */
    long trial;           /* slot that is 0 if the Landlock ruleset was seen to be in force */
    struct text report, report_untried, ready;
};

#endif
