/*
 * Blocks of float32 as eight-bit codes with a scale each, and back: what ../_blocks.py does in numpy, in one pass, to the
 * same bits. A block is read from memory once, its peak and its codes are found in the cache.
 */
#include <float.h>
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

enum code { INT8, E4M3 }; /* NUMBERS of blocks.py */

static const float LARGEST[] = {127.0f, 448.0f};
static const float SMALLEST_PEAK = 0x1p-119f;                     /* of base.py */
static const float LARGEST_PEAK = (float)(FLT_MAX * (1 - 0x1p-20)); /* of scales_of() in _blocks.py */

union word {
    float value;
    uint32_t bits;
};

static inline float float_of(uint32_t bits) {
    return (union word){.bits = bits}.value;
}

static inline uint32_t bits_of(float value) {
    return (union word){.value = value}.bits;
}

/* To the nearest, ties to even: added to 1.5 x 2^23, integers are what is left of the mantissa. */
static inline uint8_t to_int8(float scaled) {
    return (uint8_t)bits_of(scaled + 0x1.8p23f);
}

static inline float from_int8(uint8_t code) {
    return (float)(int8_t)code;
}

/* To the nearest, ties to even, at most 448. Below 2^-6 the multiples of 2^-9 are counted by the addition's own rounding. */
static inline uint8_t to_e4m3(float scaled) {
    uint32_t bits = bits_of(scaled), size = bits & 0x7FFFFFFF;
    uint32_t no_number = -(uint32_t)(size > 0x7F800000);
    uint32_t limited = size < 0x43E00000 ? size : 0x43E00000;
    uint32_t normal = ((limited + 0x7FFFF + (limited >> 20 & 1)) >> 20) - (120 << 3);
    uint32_t subnormal = bits_of(float_of(limited) + 0x1p14f) - 0x46800000;
    uint32_t small = -(uint32_t)(size < 0x3C800000);
    uint32_t code = (small & subnormal) | (~small & normal);
    return (uint8_t)((bits >> 24 & 0x80) | (no_number & 0x7F) | (~no_number & code));
}

static inline float from_e4m3(uint8_t code) {
    uint32_t sign = (uint32_t)(code & 0x80) << 24, size = code & 0x7F;
    uint32_t normal = (size << 20) + (UINT32_C(120) << 23);
    uint32_t subnormal = bits_of(float_of((size & 7) << 20 | UINT32_C(121) << 23) - 0x1p-6f);
    uint32_t small = -(uint32_t)(size < 8), no_number = -(uint32_t)(size == 0x7F);
    return float_of(sign | (no_number & 0x7FC00000) | (~no_number & ((small & subnormal) | (~small & normal))));
}

/* As integers, sizes are in the order of the numbers, infinity and what is no number last. */
static inline float peak_of(const float *values, size_t count) {
    uint32_t peak = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t size = bits_of(values[i]) & 0x7FFFFFFF;
        peak = size > peak ? size : peak;
    }
    return float_of(peak);
}

#define EACH_CODE(conversion)                                                                                          \
    for (size_t i = 0; i < count; i++)                                                                                 \
    codes[i] = conversion(values[i] * inverse)

/* Parameters of `lengths` elements one after another, cut into blocks each for itself. Scales lie anywhere in a payload,
 * at addresses that a float may not have. */
FOR_THIS_PROCESSOR
void encode_blocks(uint32_t code, const float *restrict values, const uint64_t *lengths, size_t num_lengths, size_t block,
                   uint8_t *restrict scales, uint8_t *restrict codes) {
    const float largest = LARGEST[code];
    for (size_t parameter = 0; parameter < num_lengths; parameter++)
        for (size_t left = lengths[parameter]; left;) {
            const size_t count = left < block ? left : block;
            const float peak = peak_of(values, count);
            const float limited = peak > LARGEST_PEAK && peak <= FLT_MAX ? LARGEST_PEAK : peak;
            const float inverse = peak > SMALLEST_PEAK ? largest / peak : 0.0f;
            const float scale = limited / largest;
            memcpy(scales, &scale, sizeof scale);
            if (code == INT8)
                EACH_CODE(to_int8);
            else
                EACH_CODE(to_e4m3);
            values += count, codes += count, left -= count, scales += sizeof scale;
        }
}

#define EACH_VALUE(conversion)                                                                                         \
    for (size_t i = 0; i < count; i++)                                                                                 \
    total[i] = (fresh ? 0.0f : total[i]) + conversion(codes[i]) * weighted

/* `weight` times what they stand for is added to the total or, if it is `fresh`, to zeros in its place. */
FOR_THIS_PROCESSOR
void decode_blocks(uint32_t code, const uint8_t *restrict scales, const uint8_t *restrict codes, const uint64_t *lengths,
                   size_t num_lengths, size_t block, float weight, float *restrict total, uint32_t fresh) {
    for (size_t parameter = 0; parameter < num_lengths; parameter++)
        for (size_t left = lengths[parameter]; left;) {
            const size_t count = left < block ? left : block;
            float weighted;
            memcpy(&weighted, scales, sizeof weighted);
            weighted *= weight;
            if (code == INT8)
                EACH_VALUE(from_int8);
            else
                EACH_VALUE(from_e4m3);
            total += count, codes += count, left -= count, scales += sizeof weighted;
        }
}
