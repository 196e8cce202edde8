/*
 * What the programs here share: clock and wake-ups, random numbers, counters that anybody may read. Included once by
 * each, after _GNU_SOURCE and PROGRAM are defined.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static const uint64_t SECOND_NS = 1000000000;

static void die(const char *what) {
    fprintf(stderr, PROGRAM ": %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t now_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * SECOND_NS + now.tv_nsec;
}

/* Woken before others and when requested. Returns whether that could be had: without privilege only the latter can. */
static int be_prompt(int priority) {
    struct sched_param parameters = {.sched_priority = priority};
    prctl(PR_SET_TIMERSLACK, 1UL);
    return sched_setscheduler(0, SCHED_FIFO, &parameters) == 0;
}

/* In [0, 1). splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014) */
static double next_random(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return ((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

static void *map_counters(const char *path, size_t size) {
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0640);
    if (file < 0 || ftruncate(file, size) < 0) die(path);
    void *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) die(path);
    close(file);
    return mapped;
}
