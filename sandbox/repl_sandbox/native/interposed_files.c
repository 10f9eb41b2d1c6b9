/* Functions of the C library as programs of a session without mounts of its own get them
   (LD_PRELOAD): files. Shared memory and semaphores with a name lie in the session's directory, files
   of /proc about the session's processes are asked for, and what may not be read is not there.
   Where sessions have a /dev/shm, only their branches have shared memory in a directory of their own.

   They keep nothing off: the kernel does. A program that makes its system calls without the C
   library meets the kernel's answers. */
#include "export.h"
#include "interposed.h"
#include "session_door.h"

enum {
    O_ACCMODE = 3,
    O_RDWR = 2,
    O_CREAT = 0100,
    O_EXCL = 0200,
    O_TRUNC = 01000,
    O_APPEND = 02000,
    O_NONBLOCK = 04000,
    O_CLOEXEC = 02000000,
#if defined(__aarch64__)
    O_DIRECTORY = 040000,
    O_NOFOLLOW = 0100000,
#else
    O_DIRECTORY = 0200000,
    O_NOFOLLOW = 0400000,
#endif
    OF_SHARED = O_NOFOLLOW | O_CLOEXEC, /* shm_open(3) */
    O_TMPFILE_BIT = 020000000,

    PROT_READ_WRITE = 3,
    MAP_SHARED = 1,
    RENAME_NOREPLACE = 1,
    PR_GET_DUMPABLE = 3,
    PR_SET_DUMPABLE = 4,
    SEMAPHORE_SIZE = 32, /* sizeof(sem_t) of glibc and musl, 64 bits */
    STATVFS_FIELDS = 11, /* of struct statvfs, the size of a pointer each */
    MOST_LISTED = 1024,
    LONGEST_NAME = 255,
    LONGEST_PATH = 4096,
};

extern void *fdopen(int, const char *) __attribute__((weak));
extern void *fdopendir(int) __attribute__((weak));
extern void *dlsym(void *, const char *) __attribute__((weak));
extern int sem_init(void *, int, unsigned) __attribute__((weak));

/* ── paths ─────────────────────────────────────────────────────────────────────────────────── */

static const char *after(const char *text, const char *prefix) {
    while (*prefix)
        if (*text++ != *prefix++)
            return 0;
    return text;
}

/* Return the process of a path /proc/self/NAME or /proc/PID/NAME, and its name; 0: no such path. */
static long process_of(const char *path, const char **name) {
    const char *rest = after(path, "/proc/"), *self;
    long pid = 0;
    if (!rest)
        return 0;
    if ((self = after(rest, "self/")) || (self = after(rest, "thread-self/"))) {
        *name = self;
        return system_call(SYS_GETPID, 0, 0, 0, 0, 0, 0);
    }
    while (*rest >= '0' && *rest <= '9' && pid < 1L << 30)
        pid = pid * 10 + (*rest++ - '0');
    *name = rest + 1;
    return *rest == '/' ? pid : 0;
}

/* Pack a name into two words; 0 if it is too long, or no name. */
static int packed(const char *name, u64 words[2]) {
    words[0] = words[1] = 0;
    for (int index = 0; name[index]; index++) {
        if (index == 16 || name[index] == '/')
            return name[index] == '/' && !name[index + 1]; /* a directory may end in a slash */
        words[index / 8] |= (u64)(unsigned char)name[index] << (index % 8 * 8);
    }
    return *name != 0;
}

static long open_proc(const char *path, long flags) {
    const char *name;
    u64 words[2];
    long pid = process_of(path, &name), own, hidden, result;
    if (!pid || !packed(name, words))
        return -EACCES;
    own = system_call(SYS_GETPID, 0, 0, 0, 0, 0, 0) == pid;
    /* The kernel shows some files of a process that hides its memory to nobody else. */
    hidden = own && !system_call(SYS_PRCTL, PR_GET_DUMPABLE, 0, 0, 0, 0, 0);
    if (hidden)
        system_call(SYS_PRCTL, PR_SET_DUMPABLE, 1, 0, 0, 0, 0);
    result = ask_door(OPEN_PROC, pid, words[0], words[1], flags & O_CLOEXEC);
    if (hidden)
        system_call(SYS_PRCTL, PR_SET_DUMPABLE, 0, 0, 0, 0, 0);
    return result == -EBADF ? -EACCES : result;
}

/* ── the list of /proc ─────────────────────────────────────────────────────────────────────── */

static char *appended(char *end, const char *text) {
    while (*text)
        *end++ = *text++;
    *end = 0;
    return end;
}

static char *numbered(char *end, unsigned number) {
    char digits[12], *first = digits + sizeof digits;
    *--first = 0;
    do
        *--first = (char)('0' + number % 10);
    while (number /= 10);
    return appended(end, first);
}

/* Make the names in a directory those of the session's processes. */
static void list_processes(long folder, const unsigned *pids, int count) {
    char listed[4096], name[12];
    long size;
    /* Removed first: names that are too many for one look go with the next one. */
    while ((size = system_call(SYS_GETDENTS64, folder, (long)listed, sizeof listed, 0, 0, 0)) > 0)
        for (long at = 0; at < size; at += *(unsigned short *)(listed + at + 16))
            if (listed[at + 19] != '.')
                system_call(SYS_UNLINKAT, folder, (long)listed + at + 19, 0, 0, 0, 0);
    for (int index = 0; index < count; index++) {
        long flags = O_CREAT | O_EXCL | O_CLOEXEC, file; /* an empty file, which takes no block */
        numbered(name, pids[index]);
        if ((file = system_call(SYS_OPENAT, folder, (long)name, flags, 0600, 0, 0)) >= 0)
            system_call(SYS_CLOSE, file, 0, 0, 0, 0, 0);
    }
    system_call(SYS_LSEEK, folder, 0, 0, 0, 0, 0);
}

/* Open a directory of the session with the names that /proc has for it. */
static long open_process_list(long flags) {
    char path[LONGEST_FOLDER + 16];
    unsigned pids[MOST_LISTED];
    long got, folder, pipe = ask_door(LIST_PROC, 0, 0, 0, O_CLOEXEC);
    if (pipe < 0)
        return -EACCES;
    got = system_call(SYS_READ, pipe, (long)pids, sizeof pids, 0, 0, 0);
    system_call(SYS_CLOSE, pipe, 0, 0, 0, 0, 0);
    appended(appended(path, session_folder()), "/.proc");
    system_call(SYS_MKDIRAT, AT_FDCWD, (long)path, 0700, 0, 0, 0);
    folder = system_call(SYS_OPENAT, AT_FDCWD, (long)path, flags | O_DIRECTORY | O_NOFOLLOW, 0, 0, 0);
    if (folder >= 0)
        list_processes(folder, pids, got < 0 ? 0 : (int)(got / 4));
    return folder;
}

static int is_proc(const char *path) {
    const char *rest = after(path, "/proc");
    return rest && (!*rest || (*rest == '/' && !rest[1]));
}

/* Return what the session gets for a path that the kernel refuses. */
static long open_refused(const char *path, long flags) {
    const char *folder = session_folder(), *parent, *end = folder;
    long opened;
    if (!folder || *path != '/' || flags & (O_CREAT | O_ACCMODE))
        return -EACCES;
    opened = is_proc(path) ? open_process_list(flags) : open_proc(path, flags);
    if (opened != -EACCES)
        return opened;
    for (parent = folder; *folder; folder++)
        end = *folder == '/' ? folder : end;
    while (parent < end && *parent == *path)
        parent++, path++;
    return parent == end && *path == '/' ? -EACCES : -ENOENT; /* beside it are the session's files */
}

static long open_file(long directory, const char *path, long flags, long mode) {
    long opened = system_call(SYS_OPENAT, directory, (long)path, flags, mode, 0, 0);
    return opened == -EACCES ? open_refused(path, flags) : opened;
}

/* ── open ──────────────────────────────────────────────────────────────────────────────────── */

#define MODE_AFTER(last) \
    long mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE_BIT)) { \
        __builtin_va_list more; \
        __builtin_va_start(more, last); \
        mode = __builtin_va_arg(more, unsigned); \
        __builtin_va_end(more); \
    }

EXPORT int open(const char *path, int flags, ...) {
    MODE_AFTER(flags)
    return (int)returned(open_file(AT_FDCWD, path, flags, mode));
}

EXPORT int open64(const char *path, int flags, ...) {
    MODE_AFTER(flags)
    return (int)returned(open_file(AT_FDCWD, path, flags, mode));
}

EXPORT int openat(int directory, const char *path, int flags, ...) {
    MODE_AFTER(flags)
    return (int)returned(open_file(directory, path, flags, mode));
}

EXPORT int openat64(int directory, const char *path, int flags, ...) {
    MODE_AFTER(flags)
    return (int)returned(open_file(directory, path, flags, mode));
}

/* Of programs that were compiled with _FORTIFY_SOURCE. */
EXPORT int __open_2(const char *path, int flags) {
    return (int)returned(open_file(AT_FDCWD, path, flags, 0));
}

EXPORT int __open64_2(const char *path, int flags) {
    return (int)returned(open_file(AT_FDCWD, path, flags, 0));
}

EXPORT int __openat_2(int directory, const char *path, int flags) {
    return (int)returned(open_file(directory, path, flags, 0));
}

EXPORT int __openat64_2(int directory, const char *path, int flags) {
    return (int)returned(open_file(directory, path, flags, 0));
}

static void *open_stream(const char *path, const char *mode) {
    long flags = *mode == 'r' ? 0 : *mode == 'w' ? O_CREAT | O_TRUNC : O_CREAT | O_APPEND, opened;
    int updates = 0;
    void *stream;
    for (const char *each = mode + 1; *each && *each != ','; each++) {
        updates |= *each == '+';
        flags |= *each == 'x' ? O_EXCL : *each == 'e' ? O_CLOEXEC : 0;
    }
    flags |= updates ? O_RDWR : *mode == 'r' ? 0 : 1;
    if ((*mode != 'r' && *mode != 'w' && *mode != 'a') || !fdopen) {
        returned(-EINVAL);
        return 0;
    }
    opened = returned(open_file(AT_FDCWD, path, flags, 0666));
    if (opened < 0)
        return 0;
    if (!(stream = fdopen((int)opened, mode)))
        system_call(SYS_CLOSE, opened, 0, 0, 0, 0, 0);
    return stream;
}

EXPORT void *fopen(const char *path, const char *mode) {
    return open_stream(path, mode);
}

EXPORT void *fopen64(const char *path, const char *mode) {
    return open_stream(path, mode);
}

EXPORT void *opendir(const char *path) {
    long flags = O_DIRECTORY | O_CLOEXEC | O_NONBLOCK;
    long opened = returned(fdopendir ? open_file(AT_FDCWD, path, flags, 0) : -ENOSYS);
    void *stream = opened < 0 ? 0 : fdopendir((int)opened);
    if (opened >= 0 && !stream)
        system_call(SYS_CLOSE, opened, 0, 0, 0, 0, 0);
    return stream;
}

/* ── shared memory and semaphores by name ──────────────────────────────────────────────────── */

/* Write the path for a name to `path`; 0, or an errno's negative. */
static long shared_path(char path[LONGEST_PATH], const char *prefix, const char *name) {
    const char *own = branch_shared_folder(), *folder = own ? own : session_folder();
    long length = 0;
    while (*name == '/')
        name++;
    for (; name[length]; length++)
        if (name[length] == '/')
            return -EINVAL;
    if (!length || length > LONGEST_NAME - 32)
        return length ? -ENAMETOOLONG : -EINVAL;
    path = appended(path, folder ? folder : "/dev");
    appended(appended(appended(path, own ? "/" : folder ? "/.shm/" : "/shm/"), prefix), name);
    return 0;
}

/* Open a file in the directory of shared memory, which is made for the first one. */
static long open_shared(const char *path, long flags, long mode) {
    char folder[LONGEST_PATH], *end = appended(folder, path);
    long opened = system_call(SYS_OPENAT, AT_FDCWD, (long)path, flags, mode, 0, 0);
    if (opened != -ENOENT || !(flags & O_CREAT))
        return opened;
    while (*--end != '/')
        *end = 0;
    system_call(SYS_MKDIRAT, AT_FDCWD, (long)folder, 0700, 0, 0, 0); /* code has removed it */
    return system_call(SYS_OPENAT, AT_FDCWD, (long)path, flags, mode, 0, 0);
}

EXPORT int shm_open(const char *name, int flags, unsigned mode) {
    char path[LONGEST_PATH];
    long result = shared_path(path, "", name);
    return (int)returned(result ? result : open_shared(path, flags | OF_SHARED, mode));
}

static long remove_shared(const char *prefix, const char *name) {
    char path[LONGEST_PATH];
    long result = shared_path(path, prefix, name);
    return result ? result : system_call(SYS_UNLINKAT, AT_FDCWD, (long)path, 0, 0, 0, 0);
}

EXPORT int shm_unlink(const char *name) {
    return (int)returned(remove_shared("", name));
}

EXPORT int sem_unlink(const char *name) {
    return (int)returned(remove_shared("sem.", name));
}

/* Return the address of the semaphore in an open file, which is closed. */
static long mapped(long file) {
    long address = system_call(SYS_MMAP, 0, SEMAPHORE_SIZE, PROT_READ_WRITE, MAP_SHARED, file, 0);
    system_call(SYS_CLOSE, file, 0, 0, 0, 0, 0);
    return address;
}

/* Give a file a name that must be new. It is renamed, so that the kernel reports mappings under that
   name, where the file system can. */
static long named_once(const char *beside, const char *path) {
    long renamed = system_call(SYS_RENAMEAT2, AT_FDCWD, (long)beside, AT_FDCWD, (long)path,
                               RENAME_NOREPLACE, 0);
    if (renamed != -EINVAL)
        return renamed;
    return system_call(SYS_LINKAT, AT_FDCWD, (long)beside, AT_FDCWD, (long)path, 0, 0);
}

/* Make a semaphore beside its place, and give it its name once it is whole. */
static long made(const char *path, long mode, unsigned value) {
    char beside[LONGEST_PATH], *end = appended(beside, path);
    u64 token = 0;
    long file, address, linked;
    system_call(SYS_GETRANDOM, (long)&token, sizeof token, 0, 0, 0, 0);
    for (*end++ = '.'; token; token >>= 4)
        *end++ = "0123456789abcdef"[token & 15];
    *end = 0;
    file = open_shared(beside, O_RDWR | O_CREAT | O_EXCL | OF_SHARED, mode);
    if (file < 0)
        return file;
    linked = system_call(SYS_FTRUNCATE, file, SEMAPHORE_SIZE, 0, 0, 0, 0);
    address = mapped(file);
    if (linked >= 0 && address >= 0)
        linked = sem_init((void *)address, 1, value) ? -EINVAL : named_once(beside, path);
    system_call(SYS_UNLINKAT, AT_FDCWD, (long)beside, 0, 0, 0, 0);
    if (linked < 0 && !is_error(address))
        system_call(SYS_MUNMAP, address, SEMAPHORE_SIZE, 0, 0, 0, 0);
    return linked < 0 ? linked : address;
}

static long open_semaphore(const char *path, long flags, long mode, unsigned value) {
    for (;;) {
        long file = flags & O_EXCL && flags & O_CREAT ? -ENOENT : open_shared(path, O_RDWR | OF_SHARED, 0);
        long result;
        if (file >= 0)
            return mapped(file);
        if (file != -ENOENT || !(flags & O_CREAT))
            return file;
        result = made(path, mode, value);
        if (result != -EEXIST || flags & O_EXCL)
            return result;
    }
}

EXPORT void *sem_open(const char *name, int flags, ...) {
    char path[LONGEST_PATH];
    long result = sem_init ? shared_path(path, "sem.", name) : -ENOSYS;
    long mode = 0;
    unsigned value = 0;
    if (flags & O_CREAT) {
        __builtin_va_list more;
        __builtin_va_start(more, flags);
        mode = __builtin_va_arg(more, unsigned);
        value = __builtin_va_arg(more, unsigned);
        __builtin_va_end(more);
    }
    if (!result)
        result = open_semaphore(path, flags, mode, value);
    return is_error(result) ? (returned(result), (void *)0) : (void *)result;
}

EXPORT int sem_close(void *semaphore) {
    return (int)returned(system_call(SYS_MUNMAP, (long)semaphore, SEMAPHORE_SIZE, 0, 0, 0, 0));
}

/* multiprocessing and joblib put arrays into /dev/shm if there is room: where that is not the caller's own
   there is none, and they take the directory of temporary files. */
static int room(const char *name, const char *path, unsigned long *found) {
    int (*real)(const char *, void *) = dlsym ? dlsym(RTLD_NEXT, name) : 0;
    int has_own = session_folder() || branch_shared_folder();
    const char *below = has_own ? after(path, "/dev/shm") : 0;
    if (!real)
        return (int)returned(-ENOSYS);
    if (!below || (*below && *below != '/'))
        return real(path, found);
    for (int index = 0; index < STATVFS_FIELDS; index++)
        ((volatile unsigned long *)found)[index] = 0;
    return 0;
}

EXPORT int statvfs(const char *path, unsigned long *found) {
    return room("statvfs", path, found);
}

EXPORT int statvfs64(const char *path, unsigned long *found) {
    return room("statvfs64", path, found);
}
