/* Writes down, in order, what a process asks of the disk and what it says to its sockets.

   Loaded by LD_PRELOAD. RECORD_ROOT: the folder to watch; RECORD_LOG: the file to write. Each record
   is a head and then two paths and data (see recording.py, which reads them). A write, a change of
   names and a word on a socket are made and recorded under one lock, so their order in the log is
   their order. A sync is recorded when it begins and when it ends, and others may come in between. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

struct head {
    char op;
    char pad;
    uint16_t path_bytes, other_bytes;
    uint16_t pad2;
    int64_t offset;
    uint64_t num_bytes;
} __attribute__((packed));

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX];
static size_t root_bytes;
static int log_fd = -1;

#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

static void forget(void) { log_fd = -1; } /* what a child does is not recorded */

__attribute__((constructor)) static void begin(void) {
    const char *log = getenv("RECORD_LOG"), *where = getenv("RECORD_ROOT");
    if (!log || !where || strlen(where) >= sizeof root) return;
    strcpy(root, where);
    root_bytes = strlen(root);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    log_fd = fd < 0 ? -1 : (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 500);
    if (log_fd < 0) abort();
    syscall(SYS_close, fd);
    unsetenv("RECORD_LOG");
    unsetenv("LD_PRELOAD");
    pthread_atfork(NULL, NULL, forget);
}

/* ---- what is watched ---- */

static int is_watched(const char *path) {
    return log_fd >= 0 && !strncmp(path, root, root_bytes) &&
           (path[root_bytes] == '/' || !path[root_bytes]);
}

/* The path of an open file or socket, empty when it is neither of ours nor a socket. */
static const char *path_of(int fd, char path[PATH_MAX]) {
    char link[64];
    path[0] = 0;
    if (log_fd < 0 || fd == log_fd) return path;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = 0;
    if (strncmp(path, "socket:", 7) && !is_watched(path)) path[0] = 0;
    return path;
}

static int is_socket(const char *path) { return path[0] == 's'; }

static const char *absolute(int folder, const char *path, char result[PATH_MAX]) {
    char link[64], base[PATH_MAX] = "";
    if (path[0] == '/') {
        snprintf(result, PATH_MAX, "%s", path);
        return result;
    }
    snprintf(link, sizeof link, folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", folder);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, base, sizeof base - 1);
    base[length < 0 ? 0 : length] = 0;
    if (snprintf(result, PATH_MAX, "%s/%s", base, path) >= PATH_MAX) abort();
    return result;
}

/* ---- records ---- */

static void put(char op, const char *path, const char *other, int64_t offset,
                const struct iovec *data, int count, size_t num_bytes) {
    struct head head = {op, 0, strlen(path), strlen(other), 0, offset, num_bytes};
    struct iovec parts[16] = {{&head, sizeof head},
                              {(void *)path, head.path_bytes},
                              {(void *)other, head.other_bytes}};
    int used = 3, saved = errno;
    size_t left = num_bytes;
    for (int i = 0; i < count && left; i++) {
        if (used == 16) abort();
        parts[used] = data[i];
        if (parts[used].iov_len > left) parts[used].iov_len = left;
        left -= parts[used++].iov_len;
    }
    size_t total = sizeof head + head.path_bytes + head.other_bytes + num_bytes - left;
    if (left || syscall(SYS_writev, log_fd, parts, used) != (ssize_t)total) abort();
    errno = saved;
}

static void put_plain(char op, const char *path, int64_t offset) {
    put(op, path, "", offset, NULL, 0, 0);
}

/* A file that is being opened: Created, or Truncated to nothing. */
static void put_opened(int fd, int was_there, int flags) {
    char path[PATH_MAX];
    if (fd < 0 || !path_of(fd, path)[0] || is_socket(path)) return;
    if (!was_there)
        put_plain('C', path, 0);
    else if (flags & O_TRUNC)
        put_plain('T', path, 0);
}

static int is_there(int folder, const char *path) {
    return syscall(SYS_faccessat, folder, path, F_OK) == 0;
}

/* ---- opening ---- */

#define OPENED(call)                                                       \
    if (log_fd < 0 || !(flags & (O_CREAT | O_TRUNC))) return call;         \
    pthread_mutex_lock(&lock);                                             \
    int was_there = is_there(folder, path);                                \
    int fd = call;                                                         \
    put_opened(fd, was_there, flags);                                      \
    pthread_mutex_unlock(&lock);                                           \
    return fd;

#define MODE                    \
    va_list more;               \
    va_start(more, flags);      \
    mode_t mode = va_arg(more, mode_t); \
    va_end(more);

#define OPEN(name)                                   \
    int name(const char *path, int flags, ...) {     \
        MODE const int folder = AT_FDCWD;            \
        OPENED(REAL(name)(path, flags, mode))        \
    }
#define OPENAT(name)                                          \
    int name(int folder, const char *path, int flags, ...) {  \
        MODE OPENED(REAL(name)(folder, path, flags, mode))    \
    }
#define FOPEN(name)                                                             \
    FILE *name(const char *path, const char *how) {                             \
        if (log_fd < 0 || how[0] == 'r') return REAL(name)(path, how);          \
        pthread_mutex_lock(&lock);                                              \
        int was_there = is_there(AT_FDCWD, path);                               \
        FILE *file = REAL(name)(path, how);                                     \
        if (file) put_opened(fileno(file), was_there, how[0] == 'w' ? O_TRUNC : 0); \
        pthread_mutex_unlock(&lock);                                            \
        return file;                                                            \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
FOPEN(fopen)
FOPEN(fopen64)

/* ---- writing, and saying ---- */

/* `call` writes at `at` or, when that is negative, where the file stands. A socket that may block is
   no socket of a loop, and would hold everybody up. */
#define WRITTEN(type, call, at, parts, count)                                         \
    char path[PATH_MAX];                                                              \
    if (!path_of(fd, path)[0] || (is_socket(path) && may_block(fd))) return call;     \
    pthread_mutex_lock(&lock);                                                        \
    type result = call;                                                               \
    if (result > 0 && is_socket(path))                                                \
        put('S', path, "", 0, parts, count, result);                                  \
    else if (result > 0)                                                              \
        put('W', path, "", at < 0 ? lseek(fd, 0, SEEK_CUR) - result : at, parts, count, result); \
    pthread_mutex_unlock(&lock);                                                      \
    return result;

static int may_block(int fd) { return !(syscall(SYS_fcntl, fd, F_GETFL) & O_NONBLOCK); }

ssize_t write(int fd, const void *data, size_t length) {
    struct iovec part = {(void *)data, length};
    const int64_t here = -1;
    WRITTEN(ssize_t, REAL(write)(fd, data, length), here, &part, 1)
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    const int64_t here = -1;
    WRITTEN(ssize_t, REAL(writev)(fd, parts, count), here, parts, count)
}

#define PWRITE(name, offset_type)                                                  \
    ssize_t name(int fd, const void *data, size_t length, offset_type at) {        \
        struct iovec part = {(void *)data, length};                                \
        WRITTEN(ssize_t, REAL(name)(fd, data, length, at), at, &part, 1)           \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t send(int fd, const void *data, size_t length, int flags) {
    struct iovec part = {(void *)data, length};
    const int64_t here = -1;
    WRITTEN(ssize_t, REAL(send)(fd, data, length, flags), here, &part, 1)
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    const int64_t here = -1;
    WRITTEN(ssize_t, REAL(sendmsg)(fd, message, flags), here, message->msg_iov,
            (int)message->msg_iovlen)
}

ssize_t recv(int fd, void *data, size_t length, int flags) {
    char path[PATH_MAX];
    if (!path_of(fd, path)[0] || !is_socket(path) || may_block(fd))
        return REAL(recv)(fd, data, length, flags);
    pthread_mutex_lock(&lock);
    ssize_t result = REAL(recv)(fd, data, length, flags);
    struct iovec part = {data, length};
    if (result > 0) put('V', path, "", 0, &part, 1, result);
    pthread_mutex_unlock(&lock);
    return result;
}

#define SENDFILE(name, offset_type)                                                \
    ssize_t name(int fd, int from, offset_type *at, size_t length) {               \
        char path[PATH_MAX];                                                       \
        if (!path_of(fd, path)[0]) return REAL(name)(fd, from, at, length);        \
        if (length > 1 << 20) length = 1 << 20;                                    \
        char *data = malloc(length);                                               \
        ssize_t found = pread(from, data, length, at ? *at : lseek(from, 0, SEEK_CUR)); \
        ssize_t result = found > 0 ? write(fd, data, found) : found;               \
        if (result > 0 && at)                                                      \
            *at += result;                                                         \
        else if (result > 0)                                                       \
            lseek(from, result, SEEK_CUR);                                         \
        free(data);                                                                \
        return result;                                                             \
    }
SENDFILE(sendfile, off_t)
SENDFILE(sendfile64, off64_t)

#define TRUNCATED(name, offset_type)                          \
    int name(int fd, offset_type length) {                    \
        char path[PATH_MAX];                                  \
        if (!path_of(fd, path)[0]) return REAL(name)(fd, length); \
        pthread_mutex_lock(&lock);                            \
        int result = REAL(name)(fd, length);                  \
        if (!result) put_plain('T', path, length);            \
        pthread_mutex_unlock(&lock);                          \
        return result;                                        \
    }
TRUNCATED(ftruncate, off_t)
TRUNCATED(ftruncate64, off64_t)

/* ---- syncing ---- */

#define SYNCED(name)                                        \
    int name(int fd) {                                      \
        char path[PATH_MAX];                                \
        if (!path_of(fd, path)[0]) return REAL(name)(fd);   \
        pthread_mutex_lock(&lock);                          \
        put_plain('B', path, fd);                           \
        pthread_mutex_unlock(&lock);                        \
        int result = REAL(name)(fd);                        \
        pthread_mutex_lock(&lock);                          \
        put_plain(result ? 'F' : 'E', path, fd);            \
        pthread_mutex_unlock(&lock);                        \
        return result;                                      \
    }
SYNCED(fsync)
SYNCED(fdatasync)

/* ---- names ---- */

#define NAMED(op, call, folder, path, other_folder, other)                    \
    char first[PATH_MAX], second[PATH_MAX] = "";                              \
    if (log_fd < 0 || !is_watched(absolute(folder, path, first))) return call; \
    if (other) absolute(other_folder, other, second);                         \
    pthread_mutex_lock(&lock);                                                \
    int result = call;                                                        \
    if (!result) put(op, first, second, 0, NULL, 0, 0);                       \
    pthread_mutex_unlock(&lock);                                              \
    return result;

static const char *const none = NULL;

int rename(const char *path, const char *name) {
    NAMED('R', REAL(rename)(path, name), AT_FDCWD, path, AT_FDCWD, name)
}
int renameat(int folder, const char *path, int other, const char *name) {
    NAMED('R', REAL(renameat)(folder, path, other, name), folder, path, other, name)
}
int unlink(const char *path) { NAMED('U', REAL(unlink)(path), AT_FDCWD, path, 0, none) }
int unlinkat(int folder, const char *path, int flags) {
    NAMED('U', REAL(unlinkat)(folder, path, flags), folder, path, 0, none)
}
int rmdir(const char *path) { NAMED('U', REAL(rmdir)(path), AT_FDCWD, path, 0, none) }
int mkdir(const char *path, mode_t mode) {
    NAMED('M', REAL(mkdir)(path, mode), AT_FDCWD, path, 0, none)
}
int mkdirat(int folder, const char *path, mode_t mode) {
    NAMED('M', REAL(mkdirat)(folder, path, mode), folder, path, 0, none)
}
