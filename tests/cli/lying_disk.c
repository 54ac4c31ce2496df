/* A disk that lies, in front of the C library: LIE=drop acknowledges every flush and does nothing, as libeatmydata
   does; LIE=lose keeps the last block of a file only in a cache, which is dropped with that of the system. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK 4096

static int lies(const char *how) {
    const char *lie = getenv("LIE");
    return lie && !strcmp(lie, how);
}

int fsync(int fd) {
    return lies("drop") ? 0 : ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd);
}

int fdatasync(int fd) {
    return lies("drop") ? 0 : ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd);
}

int msync(void *address, size_t length, int flags) {
    return lies("drop") ? 0 : ((int (*)(void *, size_t, int))dlsym(RTLD_NEXT, "msync"))(address, length, flags);
}

static void lose(int fd) {
    char path[64], zeros[BLOCK] = {0};
    struct stat found;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int again = open(path, O_WRONLY);
    if (again < 0) return;
    if (!fstat(again, &found) && found.st_size >= BLOCK && pwrite(again, zeros, BLOCK, found.st_size - BLOCK) < 0) abort();
    ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(again);
    close(again);
}

int posix_fadvise(int fd, off_t start, off_t length, int advice) {
    if (lies("lose") && advice == POSIX_FADV_DONTNEED) lose(fd);
    return ((int (*)(int, off_t, off_t, int))dlsym(RTLD_NEXT, "posix_fadvise"))(fd, start, length, advice);
}

int posix_fadvise64(int fd, off_t start, off_t length, int advice) {
    return posix_fadvise(fd, start, length, advice);
}
