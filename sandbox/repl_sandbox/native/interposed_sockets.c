/* Functions of the C library as programs of a session without a network of its own get them
   (LD_PRELOAD): sockets by path, and accounts.

   The kernel refuses such sockets there, for their names are the host's. In their place, a socket
   bound to a path is a queue of connections that the process behind the door holds by a number, and
   the path is a file of the session with that number in it. So a session reaches only what it made
   itself, whatever it writes into such a file. */
#include "export.h"
#include "interposed.h"
#include "session_door.h"

enum {
    AF_UNIX = 1,
    SOCK_STREAM = 1,
    SOCK_TYPE = 0xf,
    SOCK_NONBLOCK = 04000,
    SOCK_CLOEXEC = 02000000,
    SOL_SOCKET = 1,
    SO_DOMAIN = 39,
    SO_COOKIE = 57,
    SCM_RIGHTS = 1,
    MSG_CMSG_CLOEXEC = 0x40000000,
    F_GETFD = 1,
    F_GETFL = 3,
    F_SETFL = 4,
    O_WRONLY = 1,
    O_CREAT = 0100,
    O_EXCL = 0200,
    O_CLOEXEC = 02000000,
    PATH_SIZE = 108, /* of sockaddr_un */
    BOUND = 64,      /* names that a process can tell of its own sockets; a session has fewer */
};

struct address {
    unsigned short family;
    char path[PATH_SIZE];
};

/* The content of the file at a socket's path. */
struct socket_file {
    char kind[16];
    u64 number;
};

static const char KIND[16] = "repl-env socket";

static struct bound {
    u64 cookie; /* of the kernel, for a socket's life */
    struct address address;
    unsigned length;
} bound[BOUND];
static unsigned next_bound;

/* ── sockets by path ───────────────────────────────────────────────────────────────────────── */

static u64 cookie_of(long fd) {
    u64 cookie = 0;
    unsigned size = sizeof cookie;
    system_call(SYS_GETSOCKOPT, fd, SOL_SOCKET, SO_COOKIE, (long)&cookie, (long)&size, 0);
    return cookie;
}

static int is_local(long fd) {
    int domain = 0;
    unsigned size = sizeof domain;
    system_call(SYS_GETSOCKOPT, fd, SOL_SOCKET, SO_DOMAIN, (long)&domain, (long)&size, 0);
    return domain == AF_UNIX;
}

/* Return the length of the path of an address of a session's socket; 0 if it is no such address. */
static unsigned path_length(long fd, const struct address *address, unsigned size) {
    unsigned length = 0;
    if (!session_folder() || !address || size <= sizeof address->family || size > sizeof *address)
        return 0;
    if (address->family != AF_UNIX || !is_local(fd))
        return 0;
    while (length < size - sizeof address->family && address->path[length])
        length++;
    return length < PATH_SIZE ? length : 0;
}

static void copy(void *to, const void *from, unsigned long size) {
    for (unsigned long index = 0; index < size; index++)
        ((volatile char *)to)[index] = ((const char *)from)[index];
}

/* Put a socket in the place of another, whose flags it gets. */
static long replace(long fd, long by) {
    long flags = system_call(SYS_FCNTL, fd, F_GETFL, 0, 0, 0, 0);
    long closes = system_call(SYS_FCNTL, fd, F_GETFD, 0, 0, 0, 0) == 1 ? O_CLOEXEC : 0;
    long result = system_call(SYS_DUP3, by, fd, closes, 0, 0, 0);
    system_call(SYS_CLOSE, by, 0, 0, 0, 0, 0);
    if (!is_error(result))
        system_call(SYS_FCNTL, fd, F_SETFL, flags, 0, 0, 0);
    return is_error(result) ? result : 0;
}

static long bind_path(long fd, const struct address *address, unsigned length) {
    struct socket_file content = {{0}, 0};
    struct address named = {0, {0}};
    struct bound *entry = &bound[next_bound % BOUND];
    long file, queue, written;
    copy(named.path, address->path, length);
    copy(content.kind, KIND, sizeof KIND);
    system_call(SYS_GETRANDOM, (long)&content.number, sizeof content.number, 0, 0, 0, 0);
    file = system_call(SYS_OPENAT, AT_FDCWD, (long)named.path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                       0600, 0, 0);
    if (file < 0)
        return file == -EEXIST ? -EADDRINUSE : file;
    written = system_call(SYS_WRITE, file, (long)&content, sizeof content, 0, 0, 0);
    system_call(SYS_CLOSE, file, 0, 0, 0, 0, 0);
    queue = written == sizeof content ? ask_door(LISTEN, (long)content.number, 0, 0, 0) : written;
    if (queue < 0) {
        system_call(SYS_UNLINKAT, AT_FDCWD, (long)named.path, 0, 0, 0, 0);
        return queue == -EBADF ? -EPERM : queue;
    }
    written = replace(fd, queue);
    next_bound++;
    entry->cookie = cookie_of(fd);
    entry->length = sizeof named.family + length + 1;
    named.family = AF_UNIX;
    copy(&entry->address, &named, sizeof named);
    return written;
}

static long connect_path(long fd, const struct address *address, unsigned length) {
    struct socket_file content = {{0}, 0};
    char path[PATH_SIZE] = {0};
    long file, end, got;
    copy(path, address->path, length);
    file = system_call(SYS_OPENAT, AT_FDCWD, (long)path, O_CLOEXEC, 0, 0, 0);
    if (file < 0)
        return file;
    got = system_call(SYS_READ, file, (long)&content, sizeof content, 0, 0, 0);
    system_call(SYS_CLOSE, file, 0, 0, 0, 0, 0);
    for (unsigned index = 0; index < sizeof KIND; index++)
        if (got != sizeof content || content.kind[index] != KIND[index])
            return -ECONNREFUSED;
    end = ask_door(CONNECT, (long)content.number, 0, 0, 0);
    return end < 0 ? (end == -EBADF ? -EPERM : end) : replace(fd, end);
}

EXPORT int socket(int domain, int type, int protocol) {
    long result = system_call(SYS_SOCKET, domain, type, protocol, 0, 0, 0);
    int pair[2];
    if (result == -EAFNOSUPPORT && domain == AF_UNIX && (type & SOCK_TYPE) == SOCK_STREAM &&
        session_folder()) {
        result = system_call(SYS_SOCKETPAIR, AF_UNIX, type, 0, (long)pair, 0, 0);
        if (!result) {
            system_call(SYS_CLOSE, pair[1], 0, 0, 0, 0, 0);
            result = pair[0];
        }
    }
    return (int)returned(result);
}

EXPORT int bind(int fd, const struct address *address, unsigned size) {
    long result = system_call(SYS_BIND, fd, (long)address, size, 0, 0, 0);
    unsigned length = result == -EPERM ? path_length(fd, address, size) : 0;
    return (int)returned(length ? bind_path(fd, address, length) : result);
}

EXPORT int connect(int fd, const struct address *address, unsigned size) {
    long result = system_call(SYS_CONNECT, fd, (long)address, size, 0, 0, 0);
    unsigned length = result == -EPERM ? path_length(fd, address, size) : 0;
    return (int)returned(length ? connect_path(fd, address, length) : result);
}

static int is_bound(long fd, struct bound **found) {
    u64 cookie = cookie_of(fd);
    for (unsigned index = 0; index < BOUND; index++)
        if (cookie && bound[index].cookie == cookie) {
            *found = &bound[index];
            return 1;
        }
    return 0;
}

EXPORT int listen(int fd, int backlog) {
    long result = system_call(SYS_LISTEN, fd, backlog, 0, 0, 0, 0);
    struct bound *ignored;
    return (int)returned(result == -EPERM && is_bound(fd, &ignored) ? 0 : result);
}

/* Take a connection out of a queue: a message of one byte with a descriptor. */
static long accepted(long queue, long flags) {
    struct {
        unsigned long size;
        int level, type, descriptor, padding;
    } control = {0, 0, 0, -1, 0};
    char byte;
    struct {
        void *base;
        unsigned long size;
    } buffer = {&byte, 1};
    struct {
        void *name;
        unsigned name_size;
        void *buffers;
        unsigned long buffer_count;
        void *control;
        unsigned long control_size;
        int flags;
    } message = {0, 0, &buffer, 1, &control, sizeof control, 0};
    long closes = flags & SOCK_CLOEXEC ? MSG_CMSG_CLOEXEC : 0;
    long result = system_call(SYS_RECVMSG, queue, (long)&message, closes, 0, 0, 0);
    if (result < 0)
        return result;
    if (!result || control.type != SCM_RIGHTS || control.descriptor < 0)
        return -EINVAL;
    if (flags & SOCK_NONBLOCK)
        system_call(SYS_FCNTL, control.descriptor, F_SETFL, SOCK_NONBLOCK | 2, 0, 0, 0);
    return control.descriptor;
}

static long accept_any(long fd, struct address *address, unsigned *size, long flags) {
    long result = system_call(SYS_ACCEPT4, fd, (long)address, (long)size, flags, 0, 0);
    if (result != -EPERM || !session_folder() || !is_local(fd))
        return result;
    result = accepted(fd, flags);
    if (result >= 0 && address && size && *size >= sizeof address->family) {
        address->family = AF_UNIX; /* without a name, like any client */
        *size = sizeof address->family;
    }
    return result;
}

EXPORT int accept(int fd, struct address *address, unsigned *size) {
    return (int)returned(accept_any(fd, address, size, 0));
}

EXPORT int accept4(int fd, struct address *address, unsigned *size, int flags) {
    return (int)returned(accept_any(fd, address, size, flags));
}

EXPORT int getsockname(int fd, struct address *address, unsigned *size) {
    unsigned room = size ? *size : 0;
    struct bound *entry;
    long result = system_call(SYS_GETSOCKNAME, fd, (long)address, (long)size, 0, 0, 0);
    if (!result && session_folder() && *size == sizeof address->family && is_bound(fd, &entry)) {
        copy(address, &entry->address, room < entry->length ? room : entry->length);
        *size = entry->length;
    }
    return (int)returned(result);
}

/* ── accounts: the host's are not the session's business, and it has one of its own ────────── */

struct passwd {
    char *name, *password;
    unsigned uid, gid;
    char *comment, *home, *shell;
};

struct group {
    char *name, *password;
    unsigned gid;
    char **members;
};

extern void *dlsym(void *, const char *) __attribute__((weak));

static char user_name[] = "user", secret[] = "x", nothing[] = "", shell[] = "/bin/sh";
static char root_name[] = "root", root_home[] = "/root", no_shell[] = "/usr/sbin/nologin";
static char *nobody[] = {0};

static int are_equal(const char *left, const char *right) {
    while (*left && *left == *right)
        left++, right++;
    return *left == *right;
}

static long own_number(long call) {
    return system_call(call, 0, 0, 0, 0, 0, 0);
}

/* Write the account with that number, or that name; 0 if there is none. */
static int account(struct passwd *row, const char *name, unsigned uid) {
    unsigned own = (unsigned)own_number(SYS_GETUID);
    char *home = getenv("HOME");
    int is_root = name ? are_equal(name, root_name) : uid == 0;
    if (is_root)
        *row = (struct passwd){root_name, secret, 0, 0, root_name, root_home, no_shell};
    else
        *row = (struct passwd){user_name, secret, own, (unsigned)own_number(SYS_GETGID), nothing,
                               home ? home : nothing, shell};
    return is_root || (name ? are_equal(name, user_name) : uid == own);
}

static int own_group(struct group *row, const char *name, unsigned gid) {
    unsigned own = (unsigned)own_number(SYS_GETGID);
    int is_root = name ? are_equal(name, root_name) : gid == 0;
    *row = (struct group){is_root ? root_name : user_name, secret, is_root ? 0 : own, nobody};
    return is_root || (name ? are_equal(name, user_name) : gid == own);
}

/* Call the C library's own function where there is no session. */
#define ELSEWHERE(type, name, failed, ...) \
    if (!session_folder()) { \
        type own = dlsym ? (type)dlsym(RTLD_NEXT, name) : (type)0; \
        return own ? own(__VA_ARGS__) : failed; \
    }

typedef struct passwd *(*by_uid)(unsigned);
typedef struct passwd *(*by_name)(const char *);
typedef int (*by_uid_r)(unsigned, struct passwd *, char *, unsigned long, struct passwd **);
typedef int (*by_name_r)(const char *, struct passwd *, char *, unsigned long, struct passwd **);
typedef struct group *(*group_by_gid)(unsigned);
typedef struct group *(*group_by_name)(const char *);
typedef int (*group_by_gid_r)(unsigned, struct group *, char *, unsigned long, struct group **);
typedef int (*group_by_name_r)(const char *, struct group *, char *, unsigned long, struct group **);

static struct passwd account_row;
static struct group group_row;

EXPORT struct passwd *getpwuid(unsigned uid) {
    ELSEWHERE(by_uid, "getpwuid", 0, uid)
    return account(&account_row, 0, uid) ? &account_row : 0;
}

EXPORT struct passwd *getpwnam(const char *name) {
    ELSEWHERE(by_name, "getpwnam", 0, name)
    return account(&account_row, name, 0) ? &account_row : 0;
}

EXPORT struct group *getgrgid(unsigned gid) {
    ELSEWHERE(group_by_gid, "getgrgid", 0, gid)
    return own_group(&group_row, 0, gid) ? &group_row : 0;
}

EXPORT struct group *getgrnam(const char *name) {
    ELSEWHERE(group_by_name, "getgrnam", 0, name)
    return own_group(&group_row, name, 0) ? &group_row : 0;
}

/* The texts of a row are constants, or of the environment, so the caller's buffer is not needed. */
EXPORT int getpwuid_r(unsigned uid, struct passwd *row, char *buffer, unsigned long size,
                      struct passwd **found) {
    ELSEWHERE(by_uid_r, "getpwuid_r", ENOSYS, uid, row, buffer, size, found)
    *found = account(row, 0, uid) ? row : 0;
    return 0;
}

EXPORT int getpwnam_r(const char *name, struct passwd *row, char *buffer, unsigned long size,
                      struct passwd **found) {
    ELSEWHERE(by_name_r, "getpwnam_r", ENOSYS, name, row, buffer, size, found)
    *found = account(row, name, 0) ? row : 0;
    return 0;
}

EXPORT int getgrgid_r(unsigned gid, struct group *row, char *buffer, unsigned long size,
                      struct group **found) {
    ELSEWHERE(group_by_gid_r, "getgrgid_r", ENOSYS, gid, row, buffer, size, found)
    *found = own_group(row, 0, gid) ? row : 0;
    return 0;
}

EXPORT int getgrnam_r(const char *name, struct group *row, char *buffer, unsigned long size,
                      struct group **found) {
    ELSEWHERE(group_by_name_r, "getgrnam_r", ENOSYS, name, row, buffer, size, found)
    *found = own_group(row, name, 0) ? row : 0;
    return 0;
}
