/*
 * Blocks of float32 as a bit for each element and the means of both sides of zero, and back: what ../onebit.py does in
 * numpy, in one pass, to the same bits. Sums are of float64, in eight lanes, whose order is numpy's of an (n / 8, 8) array.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* A product that is rounded only together with a sum would be another bit than numpy's on machines that can. */
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

#if defined(__x86_64__) && defined(__GLIBC__)
#define FOR_THIS_PROCESSOR __attribute__((target_clones("avx2", "default"))) /* the loader takes the one that it can */
#else
#define FOR_THIS_PROCESSOR
#endif

enum { LANES = 8 }; /* LANES of onebit.py: the elements of a byte of signs, too */

typedef float floats __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t words __attribute__((vector_size(LANES * sizeof(int32_t))));
typedef double doubles __attribute__((vector_size(LANES * sizeof(double))));

struct sides {
    doubles below, others;
};

static inline double added(const doubles *lanes) {
    double sum = 0.0;
    for (size_t lane = 0; lane < LANES; lane++)
        sum += (*lanes)[lane];
    return sum;
}

/* The signs of eight elements, the first one's in the highest bit, set below zero. No branch: signs are random. */
static inline uint8_t counted(const float *values, struct sides *sides) {
    floats eight;
    memcpy(&eight, values, sizeof eight);
    const words is_below = eight < (floats){0}, bits = (words)eight;
    sides->below += __builtin_convertvector((floats)(bits & is_below), doubles);
    sides->others += __builtin_convertvector((floats)(bits & ~is_below), doubles);
    const words signs = is_below & (words){128, 64, 32, 16, 8, 4, 2, 1};
    int32_t sum = 0;
    for (size_t lane = 0; lane < LANES; lane++)
        sum += signs[lane];
    return (uint8_t)sum;
}

/* The mean of what is below zero, and of the rest, of each block, at addresses that a float may not have; then a sign for
 * each element. What is no number makes both means none. */
FOR_THIS_PROCESSOR
void encode_signs(const float *restrict values, size_t num_values, size_t block, uint8_t *restrict means,
                  uint8_t *restrict signs) {
    for (size_t left = num_values; left;) {
        const size_t count = left < block ? left : block, whole = count / LANES * LANES;
        struct sides sides = {{0}, {0}};
        size_t num_below = 0;
        for (size_t start = 0; start < whole; start += LANES) {
            *signs = counted(values + start, &sides);
            num_below += (size_t)__builtin_popcount(*signs++);
        }
        if (whole < count) {
            float rest[LANES] = {0};
            memcpy(rest, values + whole, (count - whole) * sizeof *rest);
            *signs = counted(rest, &sides);
            num_below += (size_t)__builtin_popcount(*signs++);
        }
        const size_t num_others = count - num_below;
        const double sum_others = added(&sides.others);
        const double sum_below = sum_others == sum_others ? added(&sides.below) : sum_others;
        const float pair[2] = {(float)(sum_below / (double)(num_below ? num_below : 1)),
                               (float)(sum_others / (double)(num_others ? num_others : 1))};
        memcpy(means, pair, sizeof pair);
        values += count, left -= count, means += sizeof pair;
    }
}

/* `weight` times what they stand for is added to the total. */
FOR_THIS_PROCESSOR
void add_decoded_signs(const uint8_t *restrict means, const uint8_t *restrict signs, size_t num_values, size_t block,
                       float weight, float *restrict total) {
    for (size_t left = num_values; left;) {
        const size_t count = left < block ? left : block;
        float pair[2];
        memcpy(pair, means, sizeof pair);
        const float below = pair[0] * weight, others = pair[1] * weight;
        size_t whole = count / LANES * LANES;
        for (size_t start = 0; start < whole; start += LANES, signs++)
            for (size_t lane = 0; lane < LANES; lane++)
                total[start + lane] += *signs >> (7 - lane) & 1 ? below : others;
        for (size_t i = whole; i < count; i++)
            total[i] += *signs >> (7 - i % LANES) & 1 ? below : others;
        signs += whole < count;
        total += count, left -= count, means += sizeof pair;
    }
}
