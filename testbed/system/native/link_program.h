/*
 * What the programs that carry packets share beside program.h: chance, lateness, what waits, parameters by name.
 * Included once by each, after _GNU_SOURCE and PROGRAM are defined.
 */
#include "program.h"

#include <math.h>

enum { NUM_BUCKETS = 896 };

/* The histogram of lateness: 1 us wide up to 64 us, then 32 buckets in each power of two. */
static unsigned bucket_of(uint64_t late_ns) {
    uint64_t us = late_ns / 1000;
    if (us < 64) return us;
    if (us >> 31) return NUM_BUCKETS - 1;
    unsigned shift = 58 - __builtin_clzll(us);
    return shift * 32 + (us >> shift);
}

/* So late packets may be let go: the verdict's limits (testbed/verdict/thresholds.py). */
static uint64_t tolerated_ns(double delay_ns) { return fmax(300000, delay_ns / 10); }

/* For how long, in all, something was overdue by more than that, whatever of it a process has: `counted_until_ns` is its
 * own, and `due_ns` the earliest of what is so late now. */
static uint64_t newly_overdue_ns(uint64_t *counted_until_ns, uint64_t due_ns, uint64_t now) {
    uint64_t from_ns = due_ns > *counted_until_ns ? due_ns : *counted_until_ns;
    *counted_until_ns = now;
    return now > from_ns ? now - from_ns : 0;
}

/* --- chance ----------------------------------------------------------------------------------------------------- */

/* Streams of their own for each kind of draw, so that one kind does not shift another; all of them follow from the seed. */
static void start_draws(uint64_t *random, int num_draws, double seed) {
    for (int i = 0; i < num_draws; i++) random[i] = (uint64_t)seed * num_draws + i + 1;
}

/* Gilbert, Bell System Technical Journal 39 (1960); Elliott, ibid. 42 (1963). Without transitions: independent loss. */
struct losses {
    double good, bad, good_to_bad, bad_to_good; /* loss in either state, transitions after each packet */
};

static int is_lost(const struct losses *losses, int *bad, uint64_t *random) {
    if (losses->good == 0 && losses->good_to_bad == 0 && !*bad) return 0;
    int lost = next_random(random) < (*bad ? losses->bad : losses->good);
    *bad ^= next_random(random) < (*bad ? losses->bad_to_good : losses->good_to_bad);
    return lost;
}

/* The delay of one packet; none arrives before it was sent. jitter_ns is the standard deviation, of a uniform
 * distribution too; the normal one is by Box and Muller (Annals of Mathematical Statistics 29, 1958). */
static uint64_t jittered_ns(double delay_ns, double jitter_ns, int uniform, uint64_t *random) {
    if (jitter_ns == 0) return delay_ns;
    double a = next_random(random), b = next_random(random);
    double deviation = uniform ? sqrt(3) * (2 * a - 1) : sqrt(-2 * log(1 - a)) * cos(2 * M_PI * b);
    return fmax(0, delay_ns + jitter_ns * deviation);
}

/* --- what waits for its time ------------------------------------------------------------------------------------ */

struct waiting {
    uint64_t due_ns, number; /* numbers break ties */
    void *packet;
};
struct heap {
    struct waiting *items; /* the first is due first */
    size_t count, room;
};

static int is_before(const struct waiting *a, const struct waiting *b) {
    return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->number < b->number;
}

static void push(struct heap *heap, struct waiting new) {
    if (heap->count == heap->room) {
        heap->room = heap->room ? 2 * heap->room : 1024;
        heap->items = realloc(heap->items, heap->room * sizeof *heap->items);
        if (!heap->items) die("no memory for a link");
    }
    size_t at = heap->count++;
    for (; at && is_before(&new, &heap->items[(at - 1) / 2]); at = (at - 1) / 2)
        heap->items[at] = heap->items[(at - 1) / 2];
    heap->items[at] = new;
}

static struct waiting pop(struct heap *heap) {
    struct waiting top = heap->items[0], moved = heap->items[--heap->count];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < heap->count; at = child) {
        child += child + 1 < heap->count && is_before(&heap->items[child + 1], &heap->items[child]);
        if (!is_before(&heap->items[child], &moved)) break;
        heap->items[at] = heap->items[child];
    }
    heap->items[at] = moved;
    return top;
}

/* --- parameters -------------------------------------------------------------------------------------------------- */

struct parameter { const char *name; double least, most; };

/* NUMBER:NAME=VALUE,... with each name once. Returns the number, or -1 with what is wrong in `problem`. `text` is
 * consumed; `values` are in the order of `names`. */
static long parse_parameters(char *text, const struct parameter *names, int num_names, double *values,
                             const char **problem) {
    char *end, *item;
    long number = strtol(text, &end, 10);
    uint64_t found = 0;
    *problem = "it does not begin with a number and a colon";
    if (end == text || *end != ':' || number < 0) return -1;
    text = end + 1;
    *problem = "a parameter is unknown, given twice or out of range";
    while ((item = strsep(&text, ","))) {
        char *value = strchr(item, '=');
        int i = 0;
        if (!value) return -1;
        *value++ = 0;
        while (i < num_names && strcmp(names[i].name, item)) i++;
        if (i == num_names || found >> i & 1) return -1;
        found |= UINT64_C(1) << i;
        values[i] = strtod(value, &end);
        if (end == value || *end || !(values[i] >= names[i].least && values[i] <= names[i].most)) return -1;
    }
    *problem = "a parameter is missing";
    return found == (UINT64_C(1) << num_names) - 1 ? number : -1;
}
