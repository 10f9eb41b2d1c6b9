/* For functions that take the place of the C library's in a session's programs.

   The library links no C library, so what it needs of one is weak: absent where a program has none. */
#ifndef REPL_INTERPOSED_H
#define REPL_INTERPOSED_H

#include "kernel.h"

#define AT_FDCWD (-100)
#define RTLD_NEXT ((void *)-1L)
#define LONGEST_FOLDER 1024

extern int *__errno_location(void) __attribute__((weak));
extern char *getenv(const char *) __attribute__((weak));

/* Return the directory that a variable names, or null. */
static inline const char *folder_in(const char *variable) {
    const char *folder = getenv ? getenv(variable) : 0;
    int length = 0;
    if (!folder || *folder != '/')
        return 0;
    while (length < LONGEST_FOLDER && folder[length])
        length++;
    return length < LONGEST_FOLDER ? folder : 0;
}

/* The directory of temporary files of a session without mounts of its own, or null: another session,
   the template, or a program without the variable. A branch has its own, with copies of what was in
   the original's. */
static inline const char *session_folder(void) {
    return folder_in("REPL_SESSION_TMP");
}

/* The directory of shared memory of a branch of a session with a /dev/shm of its own, or null. */
static inline const char *branch_shared_folder(void) {
    return folder_in("REPL_BRANCH_SHM");
}

static inline int is_error(long result) {
    return result < 0 && result >= -LARGEST_ERRNO;
}

/* Return a system call's result as the C library does. */
static inline long returned(long result) {
    if (!is_error(result))
        return result;
    if (__errno_location)
        *__errno_location() = (int)-result;
    return -1;
}

#endif
