/* Runs the native core outside Python, under the sanitizers: `make test-native`. */
#define _GNU_SOURCE
#include "../../../sandbox/repl_sandbox/native/spawn.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

long fork_process(u64 flags, int cgroup, int *thread_id);
long spawn_session(struct spawn *spawn);

struct hooked_fork {
    void (*before)(void);
    int (*fork)(void);
    void (*after_in_child)(void);
    void (*after_in_parent)(void);
    const int *error;
};
long fork_with_hooks(const struct hooked_fork *call);

struct post_fork_work {
    int *child;
    unsigned char *half;
    unsigned char valid_half;
    int ended;
    u64 mask;
    struct pollfd host;
};
struct snapshot {
    int first_closed, wake_signal, *thread_id;
    struct post_fork_work *work;
};
long fork_snapshot(struct snapshot *snapshot);

enum { ROWS = 24, SLOTS = 8 };

static struct row row(const char *name, long number, long a, long b, long c) {
    return (struct row){.name = name, .number = (int)number, .keeps = NO_SLOT,
                        .arguments = {a, b, c}};
}

static struct row says(int fd, const char *letter) {
    struct row made = row("says", SYS_write, fd, (long)letter, 1);
    made.least = 1;
    return made;
}

static const char LETTERS[] = "abcdefghijklmnopqrstuvwx";

/* A table fails at each index: what comes before it is done, what comes after is not. */
static void fail_everywhere(void) {
    for (int bad = 0; bad <= ROWS; bad++) {
        int ends[2];
        assert(pipe(ends) == 0);
        struct row rows[ROWS];
        for (int i = 0; i < ROWS; i++)
            rows[i] = says(ends[1], &LETTERS[i]);
        if (bad < ROWS)
            rows[bad] = row("bad", SYS_close, -1, 0, 0);
        struct failure failure = {0};
        long result = run_steps(rows, ROWS, 0, 0, &failure);
        assert(close(ends[1]) == 0);
        char said[ROWS + 1] = {0};
        assert(read(ends[0], said, ROWS) == bad);
        assert(strncmp(said, LETTERS, (size_t)bad) == 0);
        assert(close(ends[0]) == 0);
        if (bad == ROWS) {
            assert(result == 0 && failure.name == 0);
        } else {
            assert(result == -1 && failure.row == bad && failure.error == EBADF);
            assert(strcmp(failure.name, "bad") == 0);
        }
    }
}

static void pass_on_results(void) {
    long slots[SLOTS] = {0};
    struct row opened = row("dup", SYS_dup, 1, 0, 0), closed = row("close", SYS_close, 2, 0, 0);
    opened.keeps = 2;
    closed.from_slots = 1;
    struct row rows[] = {opened, closed};
    struct failure failure = {0};
    assert(run_steps(rows, 2, slots, SLOTS, &failure) == 0);
    assert(slots[2] > 2 && close((int)slots[2]) == -1 && errno == EBADF);
}

static void accept_what_is_a_success(void) {
    struct failure failure = {0};
    struct row tolerated = row("close", SYS_close, -1, 0, 0);
    tolerated.tolerated[TOLERATED - 1] = EBADF;
    assert(run_steps(&tolerated, 1, 0, 0, &failure) == 0);
    tolerated.least = LONG_MAX; /* has to be refused, and is */
    assert(run_steps(&tolerated, 1, 0, 0, &failure) == 0);
    struct row refused = row("getpid", SYS_getpid, 0, 0, 0);
    refused.least = LONG_MAX;
    assert(run_steps(&refused, 1, 0, 0, &failure) == -1 && failure.error == 0);
    refused.least = 0;
    refused.exactly = 1;
    assert(run_steps(&refused, 1, 0, 0, &failure) == -1 && failure.error == 0);
    refused.least = getpid();
    assert(run_steps(&refused, 1, 0, 0, &failure) == 0);
}

/* An unsound row anywhere: nothing is called. */
static void refuse_corrupt_tables(void) {
    int ends[2];
    assert(pipe(ends) == 0);
    struct row sound = says(ends[1], LETTERS);
    struct row unsound[9];
    for (int i = 0; i < 9; i++)
        unsound[i] = sound;
    unsound[0].name = 0;
    unsound[1].number = -1;
    unsound[2].keeps = SLOTS;
    unsound[3].keeps = -2;
    unsound[4].from_slots = 1, unsound[4].arguments[0] = SLOTS;
    unsound[5].from_slots = 1 << 5, unsound[5].arguments[5] = -1;
    unsound[6].from_slots = 1 << 6;
    unsound[7].tolerated[0] = -1;
    unsound[8].tolerated[3] = 4096;
    long slots[SLOTS] = {0};
    struct failure failure = {0};
    for (int i = 0; i < 9; i++) {
        struct row rows[] = {sound, sound, unsound[i]};
        assert(run_steps(rows, 3, slots, SLOTS, &failure) == -1);
        assert(failure.error == EINVAL && failure.row == 2 && failure.name == 0);
    }
    assert(run_steps(0, 1, slots, SLOTS, &failure) == -1 && failure.error == EINVAL);
    assert(run_steps(&sound, -1, slots, SLOTS, &failure) == -1 && failure.error == EINVAL);
    assert(run_steps(&sound, 1, 0, SLOTS, &failure) == -1 && failure.error == EINVAL);
    assert(run_steps(0, 0, 0, 0, &failure) == 0);
    assert(close(ends[1]) == 0);
    char nothing;
    assert(read(ends[0], &nothing, 1) == 0);
    assert(close(ends[0]) == 0);
}

static void fork_and_refuse(void) {
    long pid = fork_process(0, -1, 0);
    assert(pid >= 0);
    if (pid == 0)
        _exit(7);
    int status;
    assert(waitpid((pid_t)pid, &status, 0) == pid && WEXITSTATUS(status) == 7);
    assert(fork_process(0, 1 << 20, 0) < 0); /* no such cgroup */
}

static int no_fork(void) {
    errno = EAGAIN;
    return -1;
}

/* A session of no namespaces whose batches say what they do: 'b' before the first worker is forked,
   then 'i' and 'w'. */
static void spawn_and_fail(const char *where, int expected_role) {
    int ends[2], word[2];
    assert(pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, word) == 0);
    struct row bad = row("bad", SYS_close, -1, 0, 0);
    struct row first[] = {says(ends[1], "b"), row("good", SYS_getpid, 0, 0, 0)};
    struct row init[] = {says(ends[1], "i"), row("good", SYS_getpid, 0, 0, 0)};
    struct row worker[] = {says(ends[1], "w"), row("good", SYS_getpid, 0, 0, 0)};
    if (strcmp(where, "spawn steps") == 0)
        first[1] = bad;
    if (strcmp(where, "init") == 0)
        init[1] = bad;
    if (strcmp(where, "worker") == 0)
        worker[1] = bad;
    long slots[SLOTS] = {0};
    struct spawn spawn = {
        .cgroup = -1,
        .fork = strcmp(where, "fork") == 0 ? no_fork : fork,
        .error = &errno,
        .spawn_steps = {first, 2, slots, SLOTS, {0}},
        .init = {init, 2, slots, SLOTS, {0}},
        .first_worker = {worker, 2, slots, SLOTS, {0}},
        .control = strcmp(where, "handshake") == 0 ? -1 : word[1],
        .host = {-1, POLLIN, 0},
        .report = {"report", 6},
        .ready = {"ready", 5},
        .trial = 0,
    };
    if (strcmp(where, "nowhere") == 0 || strcmp(where, "handshake") == 0)
        spawn.host.fd = word[0];
    sigset_t before, after;
    assert(sigprocmask(SIG_BLOCK, 0, &before) == 0);
    long pid = spawn_session(&spawn);
    assert(sigprocmask(SIG_BLOCK, 0, &after) == 0 && memcmp(&before, &after, 8) == 0);
    if (pid == 0) {
        struct failure *failure = &spawn.spawn_steps.failure;
        if (spawn.role == WORKER)
            failure = &spawn.first_worker.failure;
        else if (!failure->name)
            failure = &spawn.init.failure;
        char said[64];
        int size = snprintf(said, sizeof said, "(%ld %s)", spawn.role,
                            failure->name ? failure->name : "-");
        assert(write(ends[1], said, (size_t)size) == size);
        if (spawn.role == INIT && spawn.worker > 0)
            waitpid((pid_t)spawn.worker, 0, 0);
        _exit(0);
    }
    assert(pid > 0 && spawn.role == ZYGOTE);
    assert(close(ends[1]) == 0);
    assert(waitpid((pid_t)pid, 0, 0) == pid);
    char all[256] = {0};
    ssize_t got, size = 0;
    while ((got = read(ends[0], all + size, sizeof all - 1 - (size_t)size)) > 0)
        size += got;
    char expected[64];
    snprintf(expected, sizeof expected, "(%d %s)", expected_role,
             strcmp(where, "fork") == 0 ? "worker"
             : strcmp(where, "handshake") == 0 ? "handshake"
             : expected_role == 0 ? "" : "bad");
    if (strcmp(where, "nowhere") == 0) {
        assert(strstr(all, "(1 -)") && strstr(all, "(2 -)"));
    } else {
        assert(strstr(all, expected));
    }
    assert(close(ends[0]) == 0 && close(word[0]) == 0 && close(word[1]) == 0);
}

static void snapshot_waits_and_is_activated(int waits_for_host) {
    int ends[2], host[2], child = 0;
    unsigned char half = 0;
    assert(pipe(ends) == 0 && pipe(host) == 0);
    assert(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
    pid_t caller = fork(); /* whose sibling the snapshot is */
    assert(caller >= 0);
    if (caller == 0) {
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_BLOCK, &all, 0);
        setsid();
        struct post_fork_work work = {.child = &child, .half = &half, .valid_half = 1,
                                      .mask = ~0ULL, .host = {host[0], POLLIN, 0}};
        struct snapshot snapshot = {.first_closed = 100, .wake_signal = SIGUSR1,
                                    .work = waits_for_host ? &work : 0};
        assert(dup2(ends[1], 200) == 200);
        assert(write(host[1], "x", 1) == 1);
        long pid = fork_snapshot(&snapshot);
        if (pid == 0) {
            assert(close(200) == -1 && getpgid(0) == getpid());
            assert(write(ends[1], "woken", 5) == 5);
            _exit(0);
        }
        assert(pid > 0 && close(200) == 0);
        assert(!waits_for_host || (child == pid && half == 1));
        while (getpgid((pid_t)pid) != pid)
            sched_yield();
        kill((pid_t)pid, SIGTERM); /* is blocked */
        kill((pid_t)pid, SIGUSR1);
        _exit(0);
    }
    assert(close(ends[1]) == 0);
    char said[8] = {0};
    assert(read(ends[0], said, 8) == 5 && strcmp(said, "woken") == 0);
    while (wait(0) > 0)
        ;
    assert(close(ends[0]) == 0 && close(host[0]) == 0 && close(host[1]) == 0);
}

static char hooks[8];

static void hook_before(void) { strcat(hooks, "b"); }
static void hook_child(void) { strcat(hooks, "c"); }
static void hook_parent(void) { strcat(hooks, "p"); }

static void fork_calls_its_hooks(void) {
    struct hooked_fork call = {hook_before, fork, hook_child, hook_parent, &errno};
    hooks[0] = 0;
    long pid = fork_with_hooks(&call);
    if (pid == 0)
        _exit(strcmp(hooks, "bc") == 0 ? 0 : 1);
    int status;
    assert(pid > 0 && waitpid((pid_t)pid, &status, 0) == pid && status == 0);
    assert(strcmp(hooks, "bp") == 0);
    hooks[0] = 0;
    call.fork = no_fork;
    assert(fork_with_hooks(&call) == -EAGAIN && strcmp(hooks, "bp") == 0);
}

int main(void) {
    fail_everywhere();
    pass_on_results();
    accept_what_is_a_success();
    refuse_corrupt_tables();
    fork_and_refuse();
    spawn_and_fail("nowhere", 0);
    spawn_and_fail("spawn steps", INIT);
    spawn_and_fail("fork", INIT);
    spawn_and_fail("init", INIT);
    spawn_and_fail("worker", WORKER);
    spawn_and_fail("handshake", WORKER);
    snapshot_waits_and_is_activated(0);
    snapshot_waits_and_is_activated(1);
    fork_calls_its_hooks();
    puts("the native core does what it should");
    return 0;
}
