/* Fork a copy of the worker that waits for a signal before it runs any Python. */
#include "export.h"
#include "fork.h"

#define CLONE_PARENT 0x00008000ULL

/* What the caller does once the copy is there: it makes the copy count, in a table that it shares
   with init, ends the one that is of no use any more, and waits for the host. */
struct rest {
    int *child;             /* where the copy's process id goes */
    unsigned char *half;    /* where `chosen` goes then: which half of the table counts */
    unsigned char chosen;
    int ended;              /* process id of the copy to end, or 0 */
    u64 mask;               /* signals that are blocked while the caller waits */
    struct pollfd host;
};

struct snapshot {
    int closed;             /* descriptors from this one on are closed in the copy */
    int wakes;              /* the signal that wakes the copy */
    int *thread_id;         /* as of fork_process */
    struct rest *rest;      /* or null: the caller returns at once */
};

static void wait_to_be_woken(const struct snapshot *snapshot) {
    u64 awaited = 1ULL << (snapshot->wakes - 1);
    long signal;
    /* None of these is refused, not even by a filter of the session: the copy has nobody to tell. */
    system_call(SYS_CLOSE_RANGE, snapshot->closed, ~0U, 0, 0, 0, 0);
    system_call(SYS_SETPGID, 0, 0, 0, 0, 0, 0);
    do
        signal = system_call(SYS_RT_SIGTIMEDWAIT, (long)&awaited, 0, 0, SIGNAL_SET_SIZE, 0, 0);
    while (signal == -EINTR || signal == -EAGAIN);
    if (signal != snapshot->wakes)
        exit_process(1);
}

static void rest(struct rest *rest, int child) {
    *rest->child = child;
    *rest->half = rest->chosen;
    if (rest->ended)
        system_call(SYS_KILL, rest->ended, SIGKILL, 0, 0, 0, 0);
    wait_for_input(&rest->host, 1, rest->mask);
}

/* The copy's process id, 0 in the copy once it is woken, or a negative errno. The copy is the
   caller's sibling and leads a process group. The caller has one thread and has blocked all
   signals, which so are the copy's. */
EXPORT long fork_snapshot(struct snapshot *snapshot) {
    long pid = fork_process(CLONE_PARENT, NO_CGROUP, snapshot->thread_id);
    if (pid == 0)
        wait_to_be_woken(snapshot);
    else if (pid > 0 && snapshot->rest)
        rest(snapshot->rest, (int)pid);
    return pid;
}
