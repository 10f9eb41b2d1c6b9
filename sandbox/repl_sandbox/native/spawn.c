/* Clone a session's init, fork its first worker, and let both wait without running Python.

   Three processes return from spawn_session: the zygote at once; init when input or a signal
   arrives, or one of its steps fails; the worker when the host sends something, or a step fails.
   `role` identifies the process that returns, `failure` of its batch the step that failed. */
#include "spawn.h"
#include "export.h"
#include "fork.h"

/* The last arguments of clone(2), of which one is for thread-local storage. */
#if defined(__x86_64__)
#define CLONE_TAIL(thread_id) (long)(thread_id), 0, 0
#else
#define CLONE_TAIL(thread_id) 0, (long)(thread_id), 0
#endif

struct clone_args { /* of Linux 5.7, which has `cgroup` */
    u64 flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid,
        set_tid_size, cgroup;
};

/* fork(2) with `flags` of clone(2), into a cgroup of version 2 unless `cgroup` is NO_CGROUP. Return
   the child's process id, 0 in the child, or a negative errno. For a process with one thread. The
   kernel writes the child's id to `thread_id`, where the C library keeps it, because no function of
   the C library runs. */
EXPORT long fork_process(u64 flags, int cgroup, int *thread_id) {
    if (thread_id)
        flags |= CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID;
    if (cgroup == NO_CGROUP)
        return system_call(SYS_CLONE, (long)(flags | SIGCHLD), 0, 0, CLONE_TAIL(thread_id));
    struct clone_args arguments = {
        .flags = flags | CLONE_INTO_CGROUP,
        .child_tid = (u64)thread_id,
        .exit_signal = SIGCHLD,
        .cgroup = (u64)cgroup,
    };
    return system_call(SYS_CLONE3, (long)&arguments, sizeof arguments, 0, 0, 0, 0);
}

/* Record a failure that belongs to no row. */
static void record_failure(struct failure *failure, const char *name, long error) {
    failure->row = -1;
    failure->name = name;
    failure->error = error;
}

static int send_text(long descriptor, struct text text, struct failure *failure) {
    long written = system_call(SYS_WRITE, descriptor, (long)text.start, text.size, 0, 0, 0);
    if (written == text.size)
        return 1;
    record_failure(failure, "handshake", written < 0 ? -written : 0);
    return 0;
}

static void run_worker(struct spawn *spawn) {
    struct failure *failure = &spawn->first_worker.failure;
    set_signal_mask(spawn->worker_mask, 0);
    if (run_batch(&spawn->first_worker) || spawn->host.fd < 0)
        return;
    int tried = spawn->first_worker.slots[spawn->trial] == 0;
    if (!send_text(spawn->control, tried ? spawn->report : spawn->report_untried, failure))
        return;
    if (!send_text(spawn->host.fd, spawn->ready, failure))
        return;
    system_call(SYS_CLOSE, spawn->control, 0, 0, 0, 0, 0);
    wait_for_input(&spawn->host, 1, spawn->worker_mask);
}

static void run_init(struct spawn *spawn) {
    if (run_batch(&spawn->init) || spawn->awaited_count == 0)
        return;
    wait_for_input(spawn->awaited, spawn->awaited_count, 0);
}

static void run_session(struct spawn *spawn) {
    spawn->role = INIT;
    if (run_batch(&spawn->spawn_steps))
        return;
    spawn->worker = spawn->fork();
    if (spawn->worker == 0) {
        spawn->role = WORKER;
        run_worker(spawn);
    } else if (spawn->worker > 0) {
        run_init(spawn);
    } else {
        record_failure(&spawn->spawn_steps.failure, "worker", *spawn->error);
    }
}

/* Return the session's process id in the zygote, or a negative errno; 0 in the session's
   processes. */
EXPORT long spawn_session(struct spawn *spawn) {
    u64 before;
    set_signal_mask(EVERY_SIGNAL, &before);
    long pid = fork_process(spawn->flags, (int)spawn->cgroup, spawn->thread_id);
    if (pid == 0)
        run_session(spawn);
    set_signal_mask(before, 0);
    return pid;
}
