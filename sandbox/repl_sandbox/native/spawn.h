/* What the zygote tells a new session's processes, as native/spawn.py lays it out. */
#ifndef REPL_SPAWN_H
#define REPL_SPAWN_H

#include "kernel.h"
#include "steps.h"

enum { AWAITED = 4 };

/* In whose process spawn_session returns. */
enum role { ZYGOTE, INIT, WORKER };

struct text {
    const char *start;
    long size;
};

struct spawn {
    u64 flags;            /* of clone(2): the new namespaces */
    long cgroup;          /* descriptor of the cgroup (version 2) to be born into, or NO_CGROUP */
    int *thread_id;       /* where the C library keeps the id of its main thread, or null */
    int (*fork)(void);    /* of the C library, which has its handlers to run */
    int *error;           /* errno of the C library */
    long role;            /* out */
    long worker;          /* out, in init: the worker's process id */
    struct batch birth;   /* of both processes, before the first worker is forked */
    struct batch init;
    struct batch first_worker;
    long awaited_count;   /* 0: init returns as soon as its steps are taken */
    struct pollfd awaited[AWAITED]; /* what init waits for */
    u64 worker_mask;      /* signals that are blocked in a first worker until it returns */
    long control;         /* descriptor of the worker that hears `report` and is closed then */
    struct pollfd host;   /* socket of the worker that hears `ready`; fd -1: the worker returns */
    long trial;           /* slot that says by 0 that the Landlock ruleset could be tried */
    struct text report, report_untried, ready;
};

#endif
