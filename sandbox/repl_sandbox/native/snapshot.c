/* Fork a snapshot of the worker, which waits for a signal before it runs any Python. */
#include "snapshot.h"
#include "export.h"
#include "fork.h"

#define CLONE_PARENT 0x00008000ULL

static void wait_for_activation(const struct snapshot *snapshot) {
    u64 awaited = 1ULL << (snapshot->wake_signal - 1);
    long signal;
    /* Errors are ignored: no filter of a session refuses these calls, and the snapshot could report
       an error to no process. */
    system_call(SYS_CLOSE_RANGE, snapshot->first_closed, ~0U, 0, 0, 0, 0);
    system_call(SYS_SETPGID, 0, 0, 0, 0, 0, 0);
    do
        signal = system_call(SYS_RT_SIGTIMEDWAIT, (long)&awaited, 0, 0, SIGNAL_SET_SIZE, 0, 0);
    while (signal == -EINTR || signal == -EAGAIN);
    if (signal != snapshot->wake_signal)
        exit_process(1);
}

static void finish_fork(struct post_fork_work *work, int child) {
    *work->child = child;
    *work->half = work->valid_half;
    if (work->ended)
        system_call(SYS_KILL, work->ended, SIGKILL, 0, 0, 0, 0);
    wait_for_input(&work->host, 1, work->mask);
}

/* Return the snapshot's process id, 0 in the snapshot once it is activated, or a negative errno.
   The snapshot is the caller's sibling and leads a process group. The caller has one thread and has
   blocked all signals, so they are blocked in the snapshot as well. */
EXPORT long fork_snapshot(struct snapshot *snapshot) {
    long pid = fork_process(CLONE_PARENT, NO_CGROUP, snapshot->thread_id);
    if (pid == 0)
        wait_for_activation(snapshot);
    else if (pid > 0 && snapshot->work)
        finish_fork(snapshot->work, (int)pid);
    return pid;
}
