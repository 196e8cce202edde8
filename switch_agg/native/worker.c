/*
 * The worker's end of the aggregation protocol, fast: one reduction at a time over one UDP socket.
 *
 * The same rules as switch_agg/worker.py (slots that clock themselves, RFC 6298's timer with back-off, repetition after
 * three later chunks, window policies) and switch_agg/quantize.py (block exponents); the tests compare both with this.
 * Packets move in batches through sendmmsg(2) and recvmmsg(2), straight from the rows of the wire image that were staged
 * once.
 *
 * No state outlives a call: everything is in struct reduction, whose layout switch_agg/native/worker.py repeats.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum {
    FORMAT = 2,
    HEADER_BYTES = 14,
    KIND_RESET = 4,
    KIND_SATURATED = 6,
    KIND_DATA_16 = 7,
    KIND_DATA_8 = 8,
    KIND_DATA_32 = 9,
    MAX_LANES = 4,
    PARTIAL = 8,
    BATCH = 32,
    MAX_SEGMENTS = 16,           /* chunks in a message */
    MIN_MESSAGES = 8,            /* in a window, or the links' ends wait for each other */
    MAX_ELEMENTS = 2048,
    MAX_MESSAGE_BYTES = 1 << 15, /* which the switch's kernel has to find in one piece */
    BUFFER_BYTES = 1 << 16,      /* a message may have been put together on the way (UDP_GRO) */
    REORDERING = 3,
    MAX_LATE_ATTEMPTS = 2,
    LATENCY_STEPS_LOG2 = 2, /* buckets of each doubling (switch_agg/slot_latency.py) */
    LATENCY_LEAST_EXPONENT = -20,
    LATENCY_BUCKETS = 96,
    NONE = -1,
};
enum outcome { DONE, EPOCH_ENDED, LOST, CANCELLED, FAILED };
enum policy { FIXED, AIMD, DELAY };
static const double MAX_TIMEOUT_S = 1.0, GRANULARITY_S = 1e-3, MAX_ROUND_TRIPS = 2, MAX_BACKOFF = 16;
static const double MIN_PATIENCE = 1.25, MAX_PATIENCE = 8, PATIENCE_STEP = 0.5, PATIENCE_DECAY = 1.0 / 16;
static const double MESSAGE_S = 1e-3;            /* of chunks in one message, at the rate they come back */
static const double MIN_REST_S = 1e-4, MAX_REST_S = 3e-3;
static const double SHORT_QUEUE_S = 1e-3, SHORT_SHARE = 0.125, LONG_SHARE = 0.4;

struct reduction {
    /* What is requested. */
    uint8_t *images;   /* num_chunks rows: header and big-endian elements */
    int32_t *elements; /* (num_chunks, num_elements), host order; unused with floats */
    int8_t *exponents;
    uint8_t *contributions;
    uint8_t *saturated;
    const volatile int32_t *cancel;
    /* With floats: of count values the chosen blocks are staged when they are first sent, and a sum goes to the result as
     * it comes, unless its exponent shows that the block has to be done again. */
    const float *values;
    float *result;
    const int64_t *blocks;
    const int8_t *staged, *used; /* by row: what to quantise by, and what that says of the sum */
    uint64_t count;
    int32_t shift_base; /* 30 - ceil(log2 n) */
    int32_t with_floats;
    uint32_t num_chunks, num_elements, first_chunk, num_slots;
    uint32_t num_workers, job, epoch, generation;
    int32_t socket, policy;
    uint32_t max_segments; /* that the interface lets pass as one message (UDP_SEGMENT) */
    int32_t lanes; /* integers in an element: 1 of 32 bits, 2 of 16, 4 of 8 (switch_agg/payload.py) */
    double max_silence_s, min_timeout_s, target_s;
    double dilation; /* seconds of the machine in one of the protocol's, which every time here is in (clock.py) */
    /* Carried from one reduction to the next. */
    double timeout_s, smoothed_s, variation_s; /* smoothed_s < 0: no sample yet */
    double least_s, patience, grown_s;
    double window, base_s, decreased_s;
    int32_t slow_start;
    /* What came of it. */
    int32_t error;      /* errno of FAILED */
    uint32_t new_epoch; /* of EPOCH_ENDED */
    uint32_t lost_chunk, lost_attempts;
    double lost_after_s;
    uint64_t sent, timeouts, fast_retransmissions, results, duplicates, bad;
    uint64_t slot_latencies[LATENCY_BUCKETS]; /* of results, from a chunk's first sending */
};

struct flight {
    int32_t previous, next; /* in the order of the last transmissions */
    uint32_t attempts;      /* 0: not under way */
    int32_t lost;           /* waits to be repeated */
    uint64_t order;
    double first_s, sent_s;
};

struct state {
    struct reduction *r;
    struct flight *flights;
    uint32_t *sendable; /* chunks whose slot is free; a heap */
    uint32_t num_sendable;
    int32_t oldest, newest;
    uint32_t num_flights, num_received, num_lost;
    uint64_t transmissions;
    int64_t newest_returned;
    double progress_s;    /* when the last result came, or the reduction began */
    double expired_s;     /* when the timer ran out last */
    unsigned expirations; /* since the last result */
};

static double now_s(const struct reduction *r) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (now.tv_sec + now.tv_nsec * 1e-9) / r->dilation;
}

/* Floats in a chunk. */
static uint32_t num_values(const struct reduction *r) {
    return r->num_elements * r->lanes;
}

/* The power of two that the switch divided a sum by. */
static int doublings(const struct reduction *r) {
    return r->lanes == 1 || r->num_workers < 2 ? 0 : 32 - __builtin_clz(r->num_workers - 1);
}

/* Whether a datagram of that kind has this job's integers. */
static int carries(const struct reduction *r, unsigned kind) {
    if (r->lanes == 1) return kind == KIND_DATA_32 || kind == KIND_SATURATED;
    return kind == (r->lanes == 2 ? KIND_DATA_16 : KIND_DATA_8);
}

/* --- floats and integers (switch_agg/quantize.py) ----------------------------------------------------------------- */

enum { EXPONENT_ZERO = -128, EXPONENT_NOT_FINITE = 127, MIN_EXPONENT = -127, MAX_EXPONENT = 126 };

/* The exponent of each block of num_elements floats; the last block may be short. */
void exponents_of(const float *values, uint64_t count, uint32_t num_elements, int8_t *exponents) {
    for (uint64_t begin = 0, block = 0; begin < count; begin += num_elements, block++) {
        uint64_t end = begin + num_elements < count ? begin + num_elements : count;
        int32_t highest = 0, bits;
        for (uint64_t i = begin; i < end; i++) {
            memcpy(&bits, &values[i], 4);
            bits &= 0x7fffffff;
            highest = bits > highest ? bits : highest;
        }
        int exponent = (highest >> 23) - 126; /* magnitudes are below two to this power */
        if (highest < 0x400000) exponent = MIN_EXPONENT; /* a subnormal below two to the -127 */
        if (exponent < MIN_EXPONENT) exponent = MIN_EXPONENT;
        exponents[block] = highest == 0 ? EXPONENT_ZERO : exponent > MAX_EXPONENT ? EXPONENT_NOT_FINITE : exponent;
    }
}

static uint32_t integer(double scaled, double limit) {
    double clipped = scaled > limit ? limit : scaled < -limit ? -limit : scaled;
    return (uint32_t)(int32_t)rint(clipped);
}

static void stage_block(const float *values, uint32_t count, int shift, float limit, uint8_t *out) {
    uint32_t i = 0;
    /* A power of two that float32 holds changes no digit of a float. */
    if (shift > -100 && shift < 100) {
        float scale = ldexpf(1.0f, shift);
#ifdef __SSE2__
        __m128 scales = _mm_set1_ps(scale), upper = _mm_set1_ps(limit), lower = _mm_set1_ps(-limit);
        for (; i + 4 <= count; i += 4) {
            __m128 scaled = _mm_mul_ps(_mm_loadu_ps(values + i), scales);
            __m128i whole = _mm_cvtps_epi32(_mm_max_ps(_mm_min_ps(scaled, upper), lower));
            whole = _mm_or_si128(_mm_slli_epi16(whole, 8), _mm_srli_epi16(whole, 8)); /* bytes of each half */
            whole = _mm_shufflelo_epi16(_mm_shufflehi_epi16(whole, 0xb1), 0xb1);       /* halves of each word */
            _mm_storeu_si128((__m128i *)(out + 4 * i), whole);
        }
#endif
        (void)scale;
    }
    for (; i < count; i++) {
        uint32_t word = __builtin_bswap32(integer(ldexp(values[i], shift), limit));
        memcpy(out + 4 * i, &word, 4);
    }
}

/* The same in 16 or 8 bits. */
static void stage_narrow(const float *values, uint32_t count, int shift, int lanes, uint8_t *out) {
    float limit = lanes == 2 ? 32767 : 127;
    uint32_t i = 0;
#ifdef __SSE2__
    if (shift > -100 && shift < 100) {
        __m128 scales = _mm_set1_ps(ldexpf(1.0f, shift)), upper = _mm_set1_ps(limit), lower = _mm_set1_ps(-limit);
        for (; i + 16 <= count; i += 16) {
            __m128i whole[4];
            for (int part = 0; part < 4; part++) {
                __m128 scaled = _mm_mul_ps(_mm_loadu_ps(values + i + 4 * part), scales);
                whole[part] = _mm_cvtps_epi32(_mm_max_ps(_mm_min_ps(scaled, upper), lower));
            }
            __m128i halves[2] = {_mm_packs_epi32(whole[0], whole[1]), _mm_packs_epi32(whole[2], whole[3])};
            if (lanes == 4) {
                _mm_storeu_si128((__m128i *)(out + i), _mm_packs_epi16(halves[0], halves[1]));
                continue;
            }
            for (int part = 0; part < 2; part++) {
                __m128i swapped = _mm_or_si128(_mm_slli_epi16(halves[part], 8), _mm_srli_epi16(halves[part], 8));
                _mm_storeu_si128((__m128i *)(out + 2 * i + 16 * part), swapped);
            }
        }
    }
#endif
    for (; i < count; i++) {
        uint32_t whole = integer(ldexp(values[i], shift), limit);
        if (lanes == 4) out[i] = whole;
        else out[2 * i] = whole >> 8, out[2 * i + 1] = whole;
    }
}

/* Writes a block's integers into its row of the wire image. */
static void stage_row(const float *values, uint64_t count, uint32_t num_values, int64_t block, int exponent,
                      int32_t shift_base, int lanes, uint8_t *row) {
    uint64_t begin = (uint64_t)block * num_values;
    uint32_t here = count - begin < num_values ? count - begin : num_values, bytes = 4 / lanes;
    uint8_t *out = row + HEADER_BYTES;
    if (exponent == EXPONENT_ZERO || exponent == EXPONENT_NOT_FINITE) here = 0;
    else if (lanes == 1) stage_block(values + begin, here, shift_base - exponent, (float)(1 << shift_base), out);
    else stage_narrow(values + begin, here, shift_base - exponent, lanes, out);
    memset(out + bytes * (size_t)here, 0, bytes * (size_t)(num_values - here));
}

/* Of all chosen blocks. */
void stage(const float *values, uint64_t count, uint32_t num_values, const int64_t *blocks, uint64_t num_blocks,
           const int8_t *exponents, int32_t shift_base, int32_t lanes, uint8_t *images) {
    size_t row_bytes = HEADER_BYTES + 4 * (size_t)num_values / lanes;
    for (uint64_t row = 0; row < num_blocks; row++)
        stage_row(values, count, num_values, blocks[row], exponents[row], shift_base, lanes, images + row * row_bytes);
}

/* A block's sums as floats, with the exponent it was quantised with; of a result shift_base is less by the doublings
 * that the switch divided by. */
static void unstage_row(const int32_t *in, uint64_t count, uint32_t num_values, int64_t block, int exponent,
                        int32_t shift_base, float *values) {
    uint64_t begin = (uint64_t)block * num_values;
    uint32_t here = count - begin < num_values ? count - begin : num_values;
    float *out = values + begin;
    int shift = exponent - shift_base;
    if (exponent == EXPONENT_NOT_FINITE) {
        for (uint32_t i = 0; i < here; i++) out[i] = NAN;
    } else if (exponent == EXPONENT_ZERO) {
        for (uint32_t i = 0; i < here; i++) out[i] = (float)in[i];
    } else if (shift > -100 && shift < 90) {
        float scale = ldexpf(1.0f, shift);
        for (uint32_t i = 0; i < here; i++) out[i] = (float)in[i] * scale;
    } else {
        for (uint32_t i = 0; i < here; i++) out[i] = (float)ldexp(in[i], shift);
    }
}

/* Of all chosen blocks. */
void unstage(const int32_t *sums, uint64_t count, uint32_t num_values, const int64_t *blocks, uint64_t num_blocks,
             const int8_t *exponents, int32_t shift_base, float *values) {
    for (uint64_t row = 0; row < num_blocks; row++)
        unstage_row(sums + row * num_values, count, num_values, blocks[row], exponents[row], shift_base, values);
}

/* --- window policies (switch_agg/window.py) --------------------------------------------------------------------- */

static uint32_t window_of(const struct reduction *r) {
    uint32_t size = r->window < 1 ? 1 : (uint32_t)r->window;
    return size < r->num_slots ? size : r->num_slots;
}

static void increase(struct reduction *r) {
    r->window += r->slow_start ? 1.0 : 1.0 / r->window;
    if (r->window > r->num_slots) r->window = r->num_slots;
}

static void decrease(struct reduction *r, double factor, double now) {
    r->slow_start = 0;
    if (now - r->decreased_s < (r->smoothed_s < 0 ? 0 : r->smoothed_s)) return;
    r->window = r->window * factor < 1 ? 1 : r->window * factor;
    r->decreased_s = now;
}

static void on_loss(struct reduction *r, double now) {
    if (r->policy != FIXED) decrease(r, 0.5, now);
}

static void on_result(struct reduction *r, double round_trip_s, int marked, double now) {
    if (r->policy == AIMD) {
        if (marked) decrease(r, 0.5, now);
        else increase(r);
    } else if (r->policy == DELAY && round_trip_s >= 0) {
        if (r->base_s < 0 || round_trip_s < r->base_s) r->base_s = round_trip_s;
        double limit_s = r->base_s + r->target_s;
        double factor = 1 - 0.8 * (round_trip_s - limit_s) / round_trip_s;
        if (round_trip_s <= limit_s) increase(r);
        else decrease(r, factor < 0.5 ? 0.5 : factor, now);
    }
}

/* --- the timer (switch_agg/round_trip.py) ----------------------------------------------------------------------- */

static void sample(struct reduction *r, double round_trip_s) {
    if (r->smoothed_s < 0) {
        r->smoothed_s = r->least_s = round_trip_s;
        r->variation_s = round_trip_s / 2;
    } else {
        if (round_trip_s < r->least_s) r->least_s = round_trip_s;
        round_trip_s = fmin(round_trip_s, MAX_ROUND_TRIPS * r->smoothed_s); /* what waited for others says little */
        r->variation_s += (fabs(r->smoothed_s - round_trip_s) - r->variation_s) / 4;
        r->smoothed_s += (round_trip_s - r->smoothed_s) / 8;
    }
    double most_s = (MAX_ROUND_TRIPS - 1) * r->smoothed_s, spread_s = fmin(4 * r->variation_s, most_s);
    if (spread_s < GRANULARITY_S) spread_s = GRANULARITY_S;
    r->timeout_s = r->smoothed_s + spread_s;
    if (r->timeout_s < r->min_timeout_s) r->timeout_s = r->min_timeout_s;
    if (r->timeout_s > MAX_TIMEOUT_S) r->timeout_s = MAX_TIMEOUT_S;
}

/* Whether a chunk that was taken for lost, and sent last so long before its result, was only late. */
static int was_late(struct reduction *r, double since_sent_s, double now) {
    if (since_sent_s >= r->least_s) {
        r->patience -= (r->patience - MIN_PATIENCE) * PATIENCE_DECAY;
        return 0;
    }
    if (now - r->grown_s >= (r->smoothed_s < 0 ? 0 : r->smoothed_s)) {
        r->patience = r->patience + PATIENCE_STEP > MAX_PATIENCE ? MAX_PATIENCE : r->patience + PATIENCE_STEP;
        r->grown_s = now;
    }
    return 1;
}

/* When patience with the oldest flight ends, if others have overtaken it. */
static double overtaken_due_s(const struct state *s) {
    const struct reduction *r = s->r;
    if (s->oldest == NONE || (int64_t)s->flights[s->oldest].order + REORDERING > s->newest_returned) return INFINITY;
    return s->flights[s->oldest].sent_s + (r->smoothed_s < 0 ? 0 : r->patience * r->smoothed_s);
}

/* When the oldest flight has waited its time, which doubles while nothing comes back. */
static double due_s(const struct state *s) {
    if (s->oldest == NONE) return INFINITY;
    double wait_s = s->r->timeout_s * fmin(1u << (s->expirations > 16 ? 16 : s->expirations), MAX_BACKOFF);
    double from_s = s->flights[s->oldest].sent_s > s->expired_s ? s->flights[s->oldest].sent_s : s->expired_s;
    return from_s + (wait_s > MAX_TIMEOUT_S ? MAX_TIMEOUT_S : wait_s);
}

/* --- flights ----------------------------------------------------------------------------------------------------- */

static void unlink_flight(struct state *s, int32_t at) {
    struct flight *f = &s->flights[at];
    if (f->previous == NONE) s->oldest = f->next;
    else s->flights[f->previous].next = f->next;
    if (f->next == NONE) s->newest = f->previous;
    else s->flights[f->next].previous = f->previous;
}

static void on_transmission(struct state *s, uint32_t at, double now) {
    struct flight *f = &s->flights[at];
    if (f->attempts == 0) {
        if (s->num_received == 0 && s->num_flights == 0) s->progress_s = now;
        s->num_flights++;
    } else {
        unlink_flight(s, at);
    }
    if (f->attempts++ == 0) f->first_s = now;
    f->sent_s = now;
    f->order = s->transmissions++;
    f->previous = s->newest;
    f->next = NONE;
    if (s->newest == NONE) s->oldest = at;
    else s->flights[s->newest].next = at;
    s->newest = at;
}

static void make_sendable(struct state *s, uint32_t at) {
    uint32_t i = s->num_sendable++;
    for (; i && s->sendable[(i - 1) / 2] > at; i = (i - 1) / 2) s->sendable[i] = s->sendable[(i - 1) / 2];
    s->sendable[i] = at;
}

static uint32_t next_sendable(struct state *s) {
    uint32_t first = s->sendable[0], last = s->sendable[--s->num_sendable], i = 0, child;
    for (; (child = 2 * i + 1) < s->num_sendable; i = child) {
        if (child + 1 < s->num_sendable && s->sendable[child + 1] < s->sendable[child]) child++;
        if (last <= s->sendable[child]) break;
        s->sendable[i] = s->sendable[child];
    }
    s->sendable[i] = last;
    return first;
}

static uint32_t first_in_flight(const struct state *s) {
    uint32_t first = s->oldest;
    for (int32_t at = s->oldest; at != NONE; at = s->flights[at].next)
        if ((uint32_t)at < first) first = at;
    return first;
}

static void mark_lost(struct state *s, uint32_t at) {
    if (s->flights[at].lost) return;
    s->flights[at].lost = 1;
    s->num_lost++;
}

/* Fills up to BATCH rows that may go now, what is lost first, then new chunks, and those that complete a block of
 * `most`. */
static int choose(struct state *s, uint32_t *rows, uint32_t most) {
    struct reduction *r = s->r;
    int count = 0;
    for (int32_t at = s->oldest; at != NONE && s->num_lost && count < BATCH; at = s->flights[at].next) {
        if (!s->flights[at].lost) continue;
        s->flights[at].lost = 0;
        s->num_lost--;
        rows[count++] = at;
    }
    uint32_t room = window_of(r) > s->num_flights ? window_of(r) - s->num_flights : 0;
    /* What is under way may wait for workers that wait for a chunk older than all of it: that one needs no room. */
    if (!room && s->num_sendable && s->sendable[0] < first_in_flight(s)) room = 1;
    while (room-- > 0 && s->num_sendable) {
        if (count >= BATCH && s->sendable[0] / most != rows[count - 1] / most) break;
        uint32_t at = next_sendable(s);
        if (r->with_floats)
            stage_row(r->values, r->count, num_values(r), r->blocks[at], r->staged[at], r->shift_base, r->lanes,
                      r->images + at * (HEADER_BYTES + 4 * (size_t)r->num_elements));
        rows[count++] = at;
    }
    return count;
}

/* How many chunks one message may have, a power of two: a millisecond's at the rate they come back (TCP sizes its
 * super-frames so, tcp_tso_autosize()), and what the interface lets pass as one. The same on all workers, mostly, so that
 * their messages have the same chunks and the switch's answers are whole messages, too. */
static uint32_t max_segments(const struct state *s, size_t row_bytes) {
    const struct reduction *r = s->r;
    if (r->smoothed_s <= 0) return 1;
    double most = fmin(fmin(MAX_SEGMENTS, r->max_segments), fmin(window_of(r) / MIN_MESSAGES, MAX_MESSAGE_BYTES / row_bytes));
    double chunks = fmin(window_of(r) * MESSAGE_S / r->smoothed_s, most);
    uint32_t power = 1;
    while (2 * power <= chunks) power *= 2;
    return power;
}

/* One message is that many bytes of each datagram: UDP_SEGMENT in udp(7). */
static void cut_into(struct msghdr *message, char *control, uint16_t datagram_bytes) {
    message->msg_control = control;
    message->msg_controllen = CMSG_SPACE(sizeof datagram_bytes);
    struct cmsghdr *header = CMSG_FIRSTHDR(message);
    header->cmsg_level = IPPROTO_UDP;
    header->cmsg_type = UDP_SEGMENT;
    header->cmsg_len = CMSG_LEN(sizeof datagram_bytes);
    memcpy(CMSG_DATA(header), &datagram_bytes, sizeof datagram_bytes);
}

static int transmit(struct state *s) {
    struct reduction *r = s->r;
    size_t row_bytes = HEADER_BYTES + 4 * (size_t)r->num_elements;
    uint32_t most = max_segments(s, row_bytes);
    uint32_t rows[BATCH + MAX_SEGMENTS];
    for (;;) {
        int count = choose(s, rows, most);
        if (count == 0) return 0;
        struct iovec vectors[BATCH + MAX_SEGMENTS];
        struct mmsghdr messages[BATCH + MAX_SEGMENTS];
        char controls[BATCH + MAX_SEGMENTS][CMSG_SPACE(sizeof(uint16_t))];
        int num_messages = 0;
        memset(messages, 0, count * sizeof *messages);
        for (int i = 0, run; i < count; i += run, num_messages++) {
            for (run = 1; i + run < count && rows[i + run] / most == rows[i] / most;) run++;
            struct msghdr *message = &messages[num_messages].msg_hdr;
            message->msg_iov = &vectors[i];
            message->msg_iovlen = run;
            for (int j = i; j < i + run; j++)
                vectors[j] = (struct iovec){.iov_base = r->images + rows[j] * row_bytes, .iov_len = row_bytes};
            if (run > 1) cut_into(message, controls[num_messages], row_bytes);
        }
        double now = now_s(r);
        for (int done = 0; done < num_messages;) {
            int sent = sendmmsg(r->socket, messages + done, num_messages - done, 0);
            if (sent < 0 && errno == EINTR) continue;
            /* What the machine cannot send now counts as sent and lost: the timer repeats it. */
            int no_messages = sent < 0 && (errno == EIO || errno == EINVAL || errno == EMSGSIZE) &&
                              messages[done].msg_hdr.msg_control;
            if (no_messages) r->max_segments = most = 1; /* a way without checksum offload, or of a smaller MTU */
            else if (sent < 0 && errno != ECONNREFUSED && errno != ENOBUFS && errno != EAGAIN) return -1;
            done += sent < 0 ? 1 : sent;
        }
        for (int i = 0; i < count; i++) on_transmission(s, rows[i], now);
        r->sent += count;
    }
}

static void find_lost(struct state *s, double now) {
    double patience_s = s->r->smoothed_s < 0 ? 0 : s->r->patience * s->r->smoothed_s;
    for (int32_t at = s->oldest; at != NONE; at = s->flights[at].next) {
        if ((int64_t)s->flights[at].order + REORDERING > s->newest_returned) return;
        if (now < s->flights[at].sent_s + patience_s) return;
        if (s->flights[at].lost) continue;
        s->r->fast_retransmissions++;
        mark_lost(s, at);
        on_loss(s->r, now);
    }
}

static void read_integers(const uint8_t *in, uint32_t count, int lanes, int32_t *out) {
    uint32_t word;
    uint16_t half;
    if (lanes == 4) {
        for (uint32_t i = 0; i < count; i++) out[i] = (int8_t)in[i];
    } else if (lanes == 2) {
        for (uint32_t i = 0; i < count; i++) {
            memcpy(&half, in + 2 * i, 2);
            out[i] = (int16_t)__builtin_bswap16(half);
        }
    } else {
        for (uint32_t i = 0; i < count; i++) {
            memcpy(&word, in + 4 * i, 4);
            out[i] = (int32_t)__builtin_bswap32(word);
        }
    }
}

/* switch_agg/slot_latency.py: a double's exponent and the first bits behind it are the number of its bucket. */
uint32_t slot_latency_bucket(double latency_s) {
    int64_t bits, first = (int64_t)(1023 + LATENCY_LEAST_EXPONENT) << LATENCY_STEPS_LOG2;
    memcpy(&bits, &latency_s, sizeof bits);
    int64_t bucket = latency_s > 0 ? (bits >> (52 - LATENCY_STEPS_LOG2)) - first : 0;
    return bucket < 0 ? 0 : bucket < LATENCY_BUCKETS ? bucket : LATENCY_BUCKETS - 1;
}

static void take(struct state *s, const uint8_t *data, uint32_t at, int marked, double now) {
    struct reduction *r = s->r;
    struct flight *f = &s->flights[at];
    int32_t sums[MAX_LANES * MAX_ELEMENTS];
    int highest = r->exponents[at] = data[8];
    int settled = highest == EXPONENT_NOT_FINITE || (r->with_floats && highest <= r->used[at]);
    if (!r->with_floats) {
        read_integers(data + HEADER_BYTES, r->num_elements, 1, r->elements + (size_t)at * r->num_elements);
    } else if (settled) {
        read_integers(data + HEADER_BYTES, num_values(r), r->lanes, sums);
        unstage_row(sums, r->count, num_values(r), r->blocks[at],
                    highest == EXPONENT_NOT_FINITE ? highest : r->used[at], r->shift_base - doublings(r), r->result);
    }
    r->contributions[at] = data[0] & PARTIAL ? data[9] : r->num_workers;
    r->saturated[at] = data[0] >> 4 == KIND_SATURATED;
    unlink_flight(s, at);
    s->num_flights--;
    s->num_lost -= f->lost;
    s->num_received++;
    /* Only now: the result is proof that everybody contributed to the chunk that had this slot. */
    if (r->num_chunks - at > r->num_slots) make_sendable(s, at + r->num_slots);
    s->progress_s = now;
    s->expirations = 0;
    r->results++;
    r->slot_latencies[slot_latency_bucket(now - f->first_s)]++;
    /* A chunk that others overtook waited for a repetition, perhaps another worker's: that is no round trip. So does one
     * that was repeated more than once. */
    int once = f->attempts == 1, known = once && (int64_t)f->order + REORDERING > s->newest_returned;
    if (f->lost || !once) known |= was_late(r, f->lost ? 0 : now - f->sent_s, now) && f->attempts <= MAX_LATE_ATTEMPTS;
    double round_trip_s = known ? now - f->first_s : -1;
    if (round_trip_s >= 0) sample(r, round_trip_s);
    on_result(r, round_trip_s, marked, now);
    /* Of a chunk that was repeated nobody knows which transmission this answers: it proves nothing of later ones. */
    if (once && (int64_t)f->order > s->newest_returned) s->newest_returned = f->order;
    f->attempts = 0;
    find_lost(s, now);
}

/* One datagram. Returns whether it ends the epoch. */
static int handle(struct state *s, const uint8_t *data, size_t size, int marked, double now) {
    struct reduction *r = s->r;
    if (size < HEADER_BYTES || data[1] != (r->job << 4 | FORMAT)) {
        r->bad++;
        return 0;
    }
    unsigned kind = data[0] >> 4, pool = data[6] << 8 | data[7];
    uint32_t chunk, epoch;
    memcpy(&chunk, data + 2, 4);
    memcpy(&epoch, data + 10, 4);
    epoch = ntohl(epoch);
    if (kind == KIND_RESET && size == HEADER_BYTES) {
        if ((pool & 0x3fff) == r->generation && (int32_t)(epoch - r->epoch) <= 0) return 0;
        r->new_epoch = epoch;
        return 1;
    }
    if (!carries(r, kind)) return 0;
    if (size != HEADER_BYTES + 4 * (size_t)r->num_elements) {
        r->bad++;
        return 0;
    }
    uint32_t at = ntohl(chunk) - r->first_chunk;
    if (epoch != r->epoch || at >= r->num_chunks || s->flights[at].attempts == 0) r->duplicates++;
    else take(s, data, at, marked, now);
    return 0;
}

/* Reads what has come: single datagrams, and messages of several of one size (UDP_GRO in udp(7)). Returns an outcome, or
 * NONE to go on. */
static int receive(struct state *s) {
    static __thread uint8_t buffers[BATCH][BUFFER_BYTES];
    char controls[BATCH][2 * CMSG_SPACE(sizeof(int))];
    struct iovec vectors[BATCH];
    struct mmsghdr messages[BATCH];
    for (;;) {
        memset(messages, 0, sizeof messages);
        for (int i = 0; i < BATCH; i++) {
            vectors[i] = (struct iovec){.iov_base = buffers[i], .iov_len = sizeof buffers[i]};
            messages[i].msg_hdr.msg_iov = &vectors[i];
            messages[i].msg_hdr.msg_iovlen = 1;
            messages[i].msg_hdr.msg_control = controls[i];
            messages[i].msg_hdr.msg_controllen = sizeof controls[i];
        }
        int count = recvmmsg(s->r->socket, messages, BATCH, MSG_DONTWAIT, NULL);
        if (count < 0) {
            if (errno == EINTR || errno == ECONNREFUSED) continue; /* nobody there: the timer decides */
            if (errno == EAGAIN || errno == EWOULDBLOCK) return NONE;
            s->r->error = errno;
            return FAILED;
        }
        double now = now_s(s->r);
        for (int i = 0; i < count; i++) {
            int marked = 0, each = messages[i].msg_len, left = messages[i].msg_len;
            for (struct cmsghdr *c = CMSG_FIRSTHDR(&messages[i].msg_hdr); c; c = CMSG_NXTHDR(&messages[i].msg_hdr, c)) {
                if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) marked = (*CMSG_DATA(c) & 3) == 3;
                if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO) memcpy(&each, CMSG_DATA(c), sizeof each);
            }
            const uint8_t *data = buffers[i];
            do { /* one without contents is one, too */
                int here = each < left ? each : left;
                if (handle(s, data, here, marked, now)) return EPOCH_ENDED;
                data += here;
                left -= here;
            } while (left > 0);
        }
        if (count < BATCH) return NONE;
    }
}

/* Repeats the chunk that has waited longest; what its result lets go tells which others are lost. One, not all that are
 * due: whoever waits for the last worker to begin would repeat its whole window for nothing. */
static int expire(struct state *s, double now) {
    struct reduction *r = s->r;
    if (now - s->progress_s >= r->max_silence_s) {
        uint32_t first = first_in_flight(s);
        r->lost_chunk = r->first_chunk + first;
        r->lost_attempts = s->flights[first].attempts;
        r->lost_after_s = now - s->progress_s;
        return LOST;
    }
    r->timeouts++;
    mark_lost(s, s->oldest);
    s->expired_s = now;
    s->expirations++;
    on_loss(r, now);
    return NONE;
}

/* How long to let results gather before looking: waking up for each costs more than the result does. Only while they
 * queue on the way. Of a short queue no more than an eighth may be slept through: what waits for processors there would
 * wait for this one, too. What exceeds that queues at a link, which goes on sending meanwhile. */
static double rest_s(const struct state *s) {
    const struct reduction *r = s->r;
    if (r->smoothed_s < 0 || s->num_flights < BATCH) return 0;
    double queued_s = r->smoothed_s - r->least_s, short_s = fmin(queued_s, SHORT_QUEUE_S);
    double rest = SHORT_SHARE * short_s + LONG_SHARE * (queued_s - short_s);
    return rest < MIN_REST_S ? 0 : rest > MAX_REST_S ? MAX_REST_S : rest;
}

/* Contributes every row and collects every sum. Returns an enum outcome. */
int reduce(struct reduction *r) {
    struct state s = {.r = r, .oldest = NONE, .newest = NONE, .newest_returned = -1};
    s.flights = calloc(r->num_chunks ? r->num_chunks : 1, sizeof *s.flights);
    s.sendable = calloc(r->num_slots, sizeof *s.sendable);
    int outcome = s.flights && s.sendable ? NONE : FAILED;
    r->error = ENOMEM;
    for (uint32_t at = 0; outcome == NONE && at < r->num_chunks && at < r->num_slots; at++) make_sendable(&s, at);
    while (outcome == NONE && s.num_received < r->num_chunks) {
        if (transmit(&s) < 0) {
            r->error = errno;
            outcome = FAILED;
            break;
        }
        struct timespec rest = {.tv_nsec = fmin(rest_s(&s) * r->dilation, 0.5) * 1e9};
        if (rest.tv_nsec) nanosleep(&rest, NULL);
        double wait_s = (fmin(due_s(&s), overtaken_due_s(&s)) - now_s(r)) * r->dilation;
        if (wait_s > 0.1) wait_s = 0.1; /* to see a cancellation */
        if (wait_s > 0) {
            struct pollfd readable = {.fd = r->socket, .events = POLLIN};
            struct timespec wait = {.tv_sec = 0, .tv_nsec = wait_s * 1e9};
            ppoll(&readable, 1, &wait, NULL);
        }
        outcome = receive(&s);
        double now = now_s(r);
        if (outcome == NONE) find_lost(&s, now);
        if (outcome == NONE && !s.num_lost && now >= due_s(&s)) outcome = expire(&s, now);
        if (outcome == NONE && *r->cancel) outcome = CANCELLED;
    }
    free(s.flights);
    free(s.sendable);
    return outcome == NONE ? DONE : outcome;
}
