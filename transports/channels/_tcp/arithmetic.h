/*
 * What becomes of two values when they meet: every reduction, for every element type that travels. Narrow floats are
 * widened, combined, and rounded to the nearest, ties to even, as in torch; what is no number wins over what is one.
 */
#include <stddef.h>
#include <stdint.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

enum type { UINT8, INT8, INT16, INT32, INT64, FLOAT16, BFLOAT16, FLOAT32, FLOAT64, BOOL }; /* DTYPES of framing.py */
enum reduction { SUM, PRODUCT, MIN, MAX, AVERAGE, AND, OR, XOR };                           /* REDUCTIONS of framing.py */

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

static inline float from_bfloat16(uint16_t bits) {
    return float_of((uint32_t)bits << 16);
}

static inline uint16_t to_bfloat16(float value) {
    uint32_t bits = bits_of(value);
    uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return (bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC0 : (uint16_t)rounded;
}

/* Without branches, so that compilers make vectors of it: github.com/Maratyszcza/FP16, whose comments say why it is right.
 * The exponent is moved to where a float has it and scaled; of a subnormal, the float's own subtraction normalises. */
static inline float from_float16(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16, twice = bits + bits;
    float normal = float_of((twice >> 4) + (UINT32_C(0xE0) << 23)) * 0x1p-112f;
    float subnormal = float_of((twice >> 17) | (UINT32_C(126) << 23)) - 0.5f;
    uint32_t small = -(uint32_t)(twice < UINT32_C(1) << 27); /* all ones or none */
    return float_of((bits & 0x80000000) | (small & bits_of(subnormal)) | (~small & bits_of(normal)));
}

/* The float's own addition rounds: to a number of such a size that what half precision has not falls off its end. */
static inline uint16_t to_float16(float value) {
    uint32_t bits = bits_of(value), twice = bits + bits, bias = twice & 0xFF000000;
    uint32_t no_number = -(uint32_t)(twice > 0xFF000000);
    float scaled = float_of(bits & 0x7FFFFFFF) * 0x1p+112f * 0x1p-110f; /* too large: infinite */
    uint32_t sum = bits_of(float_of(((bias < 0x71000000 ? 0x71000000 : bias) >> 1) + 0x07800000) + scaled);
    uint32_t magnitude = (sum >> 13 & 0x7C00) + (sum & 0x0FFF);
    return (uint16_t)((bits >> 16 & 0x8000) | (no_number & 0x7E00) | (~no_number & magnitude));
}

#define EACH(type, expression)                                                                                         \
    do {                                                                                                               \
        type *restrict to = (type *)result;                                                                            \
        const type *restrict from = (const type *)operand;                                                             \
        for (size_t i = 0; i < num_bytes / sizeof(type); i++) {                                                        \
            const type a = to[i], b = from[i];                                                                         \
            to[i] = (type)(expression);                                                                                \
        }                                                                                                              \
    } while (0)

/* Sums and products wrap around, as numpy's do: in an unsigned type that is no shorter than int. */
#define WHOLE(type, wide)                                                                                              \
    switch (reduction) {                                                                                               \
    case SUM: EACH(type, (wide)a + (wide)b); break;                                                                    \
    case PRODUCT: EACH(type, (wide)a * (wide)b); break;                                                                \
    case MIN: EACH(type, a < b ? a : b); break;                                                                        \
    case MAX: EACH(type, a > b ? a : b); break;                                                                        \
    case AND: EACH(type, a & b); break;                                                                                \
    case OR: EACH(type, a | b); break;                                                                                 \
    case XOR: EACH(type, a ^ b); break;                                                                                \
    }

#define SAME(value) (value)

#define FLOATING(type, wide, narrow)                                                                                   \
    switch (reduction) {                                                                                               \
    case SUM: EACH(type, narrow(wide(a) + wide(b))); break;                                                            \
    case PRODUCT: EACH(type, narrow(wide(a) * wide(b))); break;                                                        \
    case MIN: EACH(type, wide(a) < wide(b) || wide(a) != wide(a) ? a : b); break;                                      \
    case MAX: EACH(type, wide(a) > wide(b) || wide(a) != wide(a) ? a : b); break;                                      \
    }

#ifdef __x86_64__
/* With the processor's own conversions, six times as fast. Returns the bytes that it has done: a multiple of 16. */
__attribute__((target("avx,f16c"))) static size_t sum_float16(uint8_t *result, const uint8_t *operand, size_t num_bytes) {
    size_t at = 0;
    for (; at + 16 <= num_bytes; at += 16) {
        __m256 a = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(result + at)));
        __m256 b = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(operand + at)));
        __m128i sum = _mm256_cvtps_ph(_mm256_add_ps(a, b), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm_storeu_si128((__m128i *)(result + at), sum);
    }
    return at;
}
#endif

#if defined(__x86_64__) && defined(__GLIBC__)
__attribute__((target_clones("avx2", "default"))) /* the loader takes the one that this processor can */
#endif
void combine(uint32_t type, uint32_t reduction, uint8_t *result, const uint8_t *operand, size_t num_bytes) {
#ifdef __x86_64__
    if (type == FLOAT16 && reduction == SUM && __builtin_cpu_supports("f16c")) {
        size_t done = sum_float16(result, operand, num_bytes);
        result += done, operand += done, num_bytes -= done;
    }
#endif
    switch (type) {
    case BOOL: /* as the bytes 0 and 1 */
    case UINT8: WHOLE(uint8_t, uint32_t); break;
    case INT8: WHOLE(int8_t, uint32_t); break;
    case INT16: WHOLE(int16_t, uint32_t); break;
    case INT32: WHOLE(int32_t, uint32_t); break;
    case INT64: WHOLE(int64_t, uint64_t); break;
    case FLOAT16: FLOATING(uint16_t, from_float16, to_float16); break;
    case BFLOAT16: FLOATING(uint16_t, from_bfloat16, to_bfloat16); break;
    case FLOAT32: FLOATING(float, SAME, SAME); break;
    case FLOAT64: FLOATING(double, SAME, SAME); break;
    }
}
