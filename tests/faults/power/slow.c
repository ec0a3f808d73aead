/* A disk that is slow below one folder: each sync, and each write, takes longer.

   Loaded by LD_PRELOAD. SLOW_ROOT: the folder; without it nothing is slow, so the variable may be
   set later, for a process that is forked. SLOW_SYNC_MS, SLOW_WRITE_MS: how much longer. Syncs
   number SLOW_STALL and twice that take SLOW_STALL_MS instead. What was slow is counted in the file
   SLOW_LOG: a letter for each, w, s or S for a stall. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static atomic_long num_syncs;

static long number(const char *name) {
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

static int is_slow(int fd) {
    const char *root = getenv("SLOW_ROOT");
    char link[64], path[PATH_MAX];
    if (!root) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    size_t n = strlen(root);
    return !strncmp(path, root, n) && (path[n] == '/' || !path[n]);
}

static void take(char what, long ms) {
    const char *log = getenv("SLOW_LOG");
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left)) {}
    int fd = log ? (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
    if (fd < 0) return;
    syscall(SYS_write, fd, &what, 1);
    syscall(SYS_close, fd);
}

static void slow_sync(int fd) {
    if (!is_slow(fd)) return;
    long n = atomic_fetch_add(&num_syncs, 1) + 1, stall = number("SLOW_STALL");
    int stalls = stall && (n == stall || n == 2 * stall);
    take(stalls ? 'S' : 's', number(stalls ? "SLOW_STALL_MS" : "SLOW_SYNC_MS"));
}

static void slow_write(int fd) {
    if (is_slow(fd)) take('w', number("SLOW_WRITE_MS"));
}

int fsync(int fd) {
    slow_sync(fd);
    return REAL(fsync)(fd);
}

int fdatasync(int fd) {
    slow_sync(fd);
    return REAL(fdatasync)(fd);
}

ssize_t write(int fd, const void *data, size_t size) {
    slow_write(fd);
    return REAL(write)(fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    slow_write(fd);
    return REAL(pwrite)(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    slow_write(fd);
    return REAL(pwrite64)(fd, data, size, at);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    slow_write(fd);
    return REAL(writev)(fd, parts, count);
}
