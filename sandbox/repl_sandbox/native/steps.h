/* An ordered table of system calls, laid out by native/library.py. */
#ifndef REPL_STEPS_H
#define REPL_STEPS_H

enum { ARGUMENTS = 6, TOLERATED = 4, NO_SLOT = -1 };

/* One system call. A slot is a word that holds the result of a row, or a value from Python. */
struct row {
    const char *name;          /* of the step that the call belongs to */
    int number;                /* of the system call */
    unsigned char from_slots;  /* bit i: argument i is the number of the slot that holds it */
    unsigned char exactly;     /* 1: only the least result is a success */
    short keeps;               /* the slot that receives the result, or NO_SLOT */
    long least;                /* the smallest result that is a success */
    short tolerated[TOLERATED]; /* errnos that are successes too; 0 for none */
    long arguments[ARGUMENTS];
};

/* The row at which a batch stopped. `error`: the errno, or 0 for a result below the least. */
struct failure {
    long row;
    long error;
    const char *name;
};

struct batch {
    const struct row *rows;
    long count;
    long *slots;
    long slot_count;
    struct failure failure;
};

long run_steps(const struct row *rows, long count, long *slots, long slot_count,
               struct failure *failure);
long run_batch(struct batch *batch);

#endif
