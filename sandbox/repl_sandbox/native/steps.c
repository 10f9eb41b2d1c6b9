/* Perform an ordered table of system calls and stop at the first that fails. */
#include "steps.h"
#include "export.h"
#include "kernel.h"

static long failed(struct failure *failure, long row, const char *name, long error) {
    failure->row = row;
    failure->name = name;
    failure->error = error;
    return -1;
}

static int is_valid(const struct row *row, long slot_count) {
    if (!row->name || row->number < 0 || row->keeps < NO_SLOT || row->keeps >= slot_count)
        return 0;
    for (int i = 0; i < ARGUMENTS; i++)
        if (row->from_slots >> i & 1 && (row->arguments[i] < 0 || row->arguments[i] >= slot_count))
            return 0;
    for (int i = 0; i < TOLERATED; i++)
        if (row->tolerated[i] < 0 || row->tolerated[i] > LARGEST_ERRNO)
            return 0;
    return row->from_slots >> ARGUMENTS == 0;
}

static int is_tolerated(const struct row *row, long error) {
    for (int i = 0; i < TOLERATED; i++)
        if (error && row->tolerated[i] == error)
            return 1;
    return 0;
}

static int is_success(const struct row *row, long result, long error) {
    if (row->exactly ? result == row->least : result >= row->least)
        return 1;
    return is_tolerated(row, error);
}

static long perform(const struct row *row, const long *slots) {
    long a[ARGUMENTS];
    for (int i = 0; i < ARGUMENTS; i++)
        a[i] = row->from_slots >> i & 1 ? slots[row->arguments[i]] : row->arguments[i];
    return system_call(row->number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* Perform `rows` in order. Return 0, or -1 with `failure` filled in; then no later row was
   performed. An invalid table fails with EINVAL before its first call. */
EXPORT long run_steps(const struct row *rows, long count, long *slots, long slot_count,
                      struct failure *failure) {
    if (count < 0 || slot_count < 0 || (count && !rows) || (slot_count && !slots))
        return failed(failure, 0, 0, EINVAL);
    for (long i = 0; i < count; i++)
        if (!is_valid(&rows[i], slot_count))
            return failed(failure, i, 0, EINVAL);
    for (long i = 0; i < count; i++) {
        const struct row *row = &rows[i];
        long result = perform(row, slots);
        long error = result < 0 && result >= -LARGEST_ERRNO ? -result : 0;
        if (!is_success(row, result, error))
            return failed(failure, i, row->name, error);
        if (row->keeps != NO_SLOT)
            slots[row->keeps] = result;
    }
    return 0;
}

long run_batch(struct batch *batch) {
    return run_steps(batch->rows, batch->count, batch->slots, batch->slot_count, &batch->failure);
}
