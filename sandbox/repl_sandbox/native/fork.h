/* Forks without a C library. */
#ifndef REPL_FORK_H
#define REPL_FORK_H

#include "kernel.h"

enum { NO_CGROUP = -1 };

long fork_process(u64 flags, int cgroup, int *thread_id);

#endif
