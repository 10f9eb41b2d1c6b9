/* Size and offsets of each structure that Python lays out, in the order of its fields:
   tests/sandbox/native/test_layouts.py compares them with Python's. */
#include "export.h"
#include "fork.h"
#include "snapshot.h"
#include "spawn.h"
#include "steps.h"

#define SIZE(structure) (int)sizeof(struct structure)
#define AT(structure, field) (int)__builtin_offsetof(struct structure, field)

EXPORT const int layout_of_row[] = {
    SIZE(row),
    AT(row, name),
    AT(row, number),
    AT(row, from_slots),
    AT(row, exactly),
    AT(row, keeps),
    AT(row, least),
    AT(row, tolerated),
    AT(row, arguments),
};

EXPORT const int layout_of_failure[] = {
    SIZE(failure),
    AT(failure, row),
    AT(failure, error),
    AT(failure, name),
};

EXPORT const int layout_of_batch[] = {
    SIZE(batch),
    AT(batch, rows),
    AT(batch, count),
    AT(batch, slots),
    AT(batch, slot_count),
    AT(batch, failure),
};

EXPORT const int layout_of_pollfd[] = {
    SIZE(pollfd),
    AT(pollfd, fd),
    AT(pollfd, events),
    AT(pollfd, revents),
};

EXPORT const int layout_of_text[] = {
    SIZE(text),
    AT(text, start),
    AT(text, size),
};

EXPORT const int layout_of_spawn[] = {
    SIZE(spawn),
    AT(spawn, flags),
    AT(spawn, cgroup),
    AT(spawn, thread_id),
    AT(spawn, fork),
    AT(spawn, error),
    AT(spawn, role),
    AT(spawn, worker),
    AT(spawn, spawn_steps),
    AT(spawn, init),
    AT(spawn, first_worker),
    AT(spawn, awaited_count),
    AT(spawn, awaited),
    AT(spawn, worker_mask),
    AT(spawn, control),
    AT(spawn, host),
    AT(spawn, trial),
    AT(spawn, report),
    AT(spawn, report_untried),
    AT(spawn, ready),
};

EXPORT const int layout_of_post_fork_work[] = {
    SIZE(post_fork_work),
    AT(post_fork_work, child),
    AT(post_fork_work, half),
    AT(post_fork_work, valid_half),
    AT(post_fork_work, ended),
    AT(post_fork_work, mask),
    AT(post_fork_work, host),
};

EXPORT const int layout_of_snapshot[] = {
    SIZE(snapshot),
    AT(snapshot, first_closed),
    AT(snapshot, wake_signal),
    AT(snapshot, thread_id),
    AT(snapshot, work),
};

EXPORT const int layout_of_hooked_fork[] = {
    SIZE(hooked_fork),
    AT(hooked_fork, before),
    AT(hooked_fork, fork),
    AT(hooked_fork, after_in_child),
    AT(hooked_fork, after_in_parent),
    AT(hooked_fork, error),
};
