/* Sets of integers as ranges: what has arrived, what was acknowledged. */
#ifndef UDP_RANGES_H
#define UDP_RANGES_H

#include "queue.h"

struct range {
    uint64_t start, end; /* half-open */
};

/* Sorted, disjoint ranges that do not touch. */
struct ranges {
    struct range *items;
    uint32_t num, capacity;
};

/* The index of the first range that ends at the value or behind it... */
static inline uint32_t first_ending_at(const struct ranges *ranges, uint64_t value) {
    uint32_t low = 0, high = ranges->num;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (ranges->items[middle].end < value) low = middle + 1; else high = middle;
    }
    return low;
}

/* ...and of the first that starts behind it. */
static inline uint32_t first_starting_after(const struct ranges *ranges, uint64_t value) {
    uint32_t low = 0, high = ranges->num;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (ranges->items[middle].start <= value) low = middle + 1; else high = middle;
    }
    return low;
}

/* Put start..end-1 in; returns how many of them are new. */
uint64_t ranges_add(struct ranges *ranges, uint64_t start, uint64_t end) {
    if (ranges->num == ranges->capacity) {
        ranges->capacity = 2 * ranges->capacity + 8;
        ranges->items = enough(realloc(ranges->items, ranges->capacity * sizeof(struct range)));
    }
    struct range *items = ranges->items;
    if (ranges->num > 0 && items[ranges->num - 1].end == start) { /* as what comes in order does */
        items[ranges->num - 1].end = end;
        return end - start;
    }
    uint32_t first = first_ending_at(ranges, start), last = first_starting_after(ranges, end);
    if (first == last) {
        memmove(items + first + 1, items + first, (ranges->num - first) * sizeof(struct range));
        items[first] = (struct range){start, end};
        ranges->num++;
        return end - start;
    }
    uint64_t known = 0;
    for (uint32_t index = first; index < last; index++) {
        uint64_t from = start > items[index].start ? start : items[index].start;
        uint64_t to = end < items[index].end ? end : items[index].end;
        known += to - from;
    }
    if (items[first].start > start) items[first].start = start;
    items[first].end = items[last - 1].end > end ? items[last - 1].end : end;
    memmove(items + first + 1, items + last, (ranges->num - last) * sizeof(struct range));
    ranges->num -= last - first - 1;
    return end - start - known;
}

/* Whether all of start..end-1 is in it. */
int ranges_cover(const struct ranges *ranges, uint64_t start, uint64_t end) {
    uint32_t after = first_starting_after(ranges, start);
    return after > 0 && end <= ranges->items[after - 1].end;
}

/* How many of 0, 1, 2... are in it without a gap. */
uint64_t ranges_prefix(const struct ranges *ranges) {
    return ranges->num > 0 && ranges->items[0].start == 0 ? ranges->items[0].end : 0;
}

/* Forget all but the largest. */
void ranges_keep_last(struct ranges *ranges, uint32_t num) {
    if (ranges->num <= num) return;
    memmove(ranges->items, ranges->items + ranges->num - num, num * sizeof(struct range));
    ranges->num = num;
}

#endif
