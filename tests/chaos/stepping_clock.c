/* The time of day of one process, off by as many seconds as a file says: preloaded, so that a test may step it.
 *
 * The monotonic clock stays as it is, as it does when an administrator or NTP sets a system's time. What waits for a
 * time of day (condition variables) is told that time by the machine's own clock.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *off_s;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("STEPPING_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *found = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *off_s, PROT_READ, MAP_SHARED, file, 0);
    off_s = found == MAP_FAILED ? NULL : found;
    if (file >= 0) close(file);
}

static int64_t off(void) { return off_s ? *off_s : 0; }

int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = (int)syscall(SYS_clock_gettime, clock, at);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += off();
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

int timespec_get(struct timespec *at, int base) {
    return base == TIME_UTC && !clock_gettime(CLOCK_REALTIME, at) ? base : 0;
}

int pthread_cond_timedwait(pthread_cond_t *restrict it, pthread_mutex_t *restrict lock,
                           const struct timespec *restrict until) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    struct timespec own = *until, now, monotonic;
    if (!real) *(void **)&real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &monotonic);
    /* Some conditions wait by the monotonic clock: its times are nearer to it than to the time of day. */
    if (llabs(until->tv_sec - monotonic.tv_sec) > llabs(until->tv_sec - now.tv_sec)) own.tv_sec -= off();
    return real(it, lock, &own);
}

/* Of the C library's own threads, in which librdkafka waits: always by the time of day. */
int cnd_timedwait(cnd_t *restrict it, mtx_t *restrict lock, const struct timespec *restrict until) {
    static int (*real)(cnd_t *, mtx_t *, const struct timespec *);
    struct timespec own = *until;
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "cnd_timedwait");
    own.tv_sec -= off();
    return real(it, lock, &own);
}
