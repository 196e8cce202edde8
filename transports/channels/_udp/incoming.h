/*
 * The stream that comes in: what is expected, what has come, what to acknowledge.
 *
 * A receiver allows as much as it has posted, and a little that it puts aside. Payload goes straight to the message's own
 * memory.
 */
#ifndef UDP_INCOMING_H
#define UDP_INCOMING_H

#include "ranges.h"
#include "wire.h"

const double MAX_ACKNOWLEDGEMENT_DELAY_S = 1e-3;
const uint32_t PACKETS_PER_ACKNOWLEDGEMENT = 16;

/* One that is expected, or begun. */
struct arriving {
    uint64_t start, end;
    uint8_t *payload; /* NULL: it goes nowhere */
    int64_t token;
    uint8_t expected[FRAME_BYTES], frame[FRAME_BYTES];
};
DEFINE_QUEUE(arrivals, struct arriving)

/* Packets with consecutive numbers and consecutive bytes that have come one after another. */
struct arrival {
    uint32_t number, num_packets; /* the first's, modulo 2^32 */
    uint64_t offset;
    uint32_t num_bytes, train_bytes; /* the last of them, which arrived together */
    uint32_t marked, zero;
    double arrived_s; /* when the kernel took the newest in */
};

struct incoming {
    double acknowledge_s; /* when an acknowledgement is due; infinity: nothing has come since the last one */
    uint64_t payload_bytes; /* each counted once, however often it came */
    uint32_t disagreement;  /* whether the frame header that came is not the one that was expected */
    uint32_t num_unacknowledged;
    struct tokens *completions; /* of messages that are complete */
    uint64_t posted_end, arrived_end, allowed;
    double arrived_s;
    uint32_t train_bytes, marks;
    uint8_t *aside; /* ASIDE_BYTES of what nobody expects yet, the byte at offset n at n modulo that */
    struct arrivals messages;
    struct ranges received, numbers;
};

void incoming_begin(struct incoming *i, struct tokens *completions, double now_s) {
    *i = (struct incoming){.acknowledge_s = INFINITY, .completions = completions, .allowed = ASIDE_BYTES,
                           .arrived_s = now_s, .aside = enough(malloc(ASIDE_BYTES))};
}

void incoming_free(struct incoming *i) {
    arrivals_free(&i->messages);
    free(i->received.items);
    free(i->numbers.items);
    free(i->aside);
}

/* Bytes start..end-1 of the stream, which were put aside. */
static void take_aside(const struct incoming *i, uint64_t start, uint64_t end, uint8_t *to) {
    while (start < end) {
        uint64_t begin = start % ASIDE_BYTES, length = ASIDE_BYTES - begin;
        if (length > end - start) length = end - start;
        memcpy(to, i->aside + begin, length);
        start += length, to += length;
    }
}

/* Whether a message has come to its end, or to a wrong beginning. */
static int complete_arrivals(struct incoming *i) {
    uint64_t prefix = ranges_prefix(&i->received);
    int completed = 0;
    while (i->messages.num > 0) {
        const struct arriving *message = arrivals_at(&i->messages, 0);
        if (prefix < message->start + FRAME_BYTES) break;
        if (memcmp(message->frame, message->expected, FRAME_BYTES) != 0) {
            i->disagreement = 1;
            return 1;
        }
        if (prefix < message->end) break;
        *tokens_append(i->completions) = message->token;
        arrivals_drop(&i->messages, 1);
        completed = 1;
    }
    return completed;
}

/* The next message goes here. Bytes of it that were put aside are moved. */
void incoming_expect(struct incoming *i, const uint8_t *frame, uint8_t *payload, uint64_t num_bytes, int64_t token) {
    struct arriving *message = arrivals_append(&i->messages);
    *message = (struct arriving){.start = i->posted_end, .end = i->posted_end + FRAME_BYTES + num_bytes,
                                 .payload = payload, .token = token};
    memcpy(message->expected, frame, FRAME_BYTES);
    i->posted_end = message->end;
    uint64_t here = message->end < i->arrived_end ? message->end : i->arrived_end;
    if (here > message->start) {
        uint64_t inside = message->start + FRAME_BYTES;
        take_aside(i, message->start, here < inside ? here : inside, message->frame);
        take_aside(i, inside, here, payload);
        complete_arrivals(i);
    }
    if (i->posted_end + ASIDE_BYTES - i->allowed >= ASIDE_BYTES / 4)
        i->acknowledge_s = 0.0; /* the sender may be waiting for leave to go on */
}

/* The frame header of the next message that nobody expects yet, once it has come; else returns 0. */
int incoming_peek(const struct incoming *i, uint8_t *frame) {
    if (ranges_prefix(&i->received) < i->posted_end + FRAME_BYTES) return 0;
    take_aside(i, i->posted_end, i->posted_end + FRAME_BYTES, frame);
    return 1;
}

/* Of the message that comes next, what has not come; 0 where none is expected. */
static uint64_t missing_bytes(const struct incoming *i) {
    return i->messages.num > 0 ? arrivals_at(&i->messages, 0)->end - ranges_prefix(&i->received) : 0;
}

/* The memory of what is expected is its owner's again. What comes of it is acknowledged as before. */
void incoming_let_go(struct incoming *i) {
    for (uint32_t index = 0; index < i->messages.num; index++) arrivals_at(&i->messages, index)->payload = NULL;
}

/* Copy what lies in start..start+room-1 of the stream of the bytes at *offset, if that is where they begin; to NULL: pass
 * over it. */
static void copy_to(uint8_t *to, uint64_t start, uint64_t room, uint64_t *offset, const uint8_t **from, uint32_t *length) {
    if (*length == 0 || *offset < start || *offset >= start + room) return;
    uint64_t part = start + room - *offset;
    if (part > *length) part = *length;
    if (to != NULL) memcpy(to + (*offset - start), *from, part);
    *offset += part, *from += part, *length -= part;
}

/* Put bytes of the stream where they belong; 0: they belong nowhere. What was received without a gap is not written
 * again: it may be its owner's by now. */
int incoming_place(struct incoming *i, uint64_t offset, const uint8_t *from, uint32_t length) {
    uint64_t allowed = i->posted_end + ASIDE_BYTES, prefix = ranges_prefix(&i->received);
    if (length == 0 || offset > allowed || length > allowed - offset) return 0;
    if (offset < prefix) {
        uint64_t known = prefix - offset < length ? prefix - offset : length;
        offset += known, from += known, length -= known;
    }
    for (uint32_t index = 0; index < i->messages.num && length > 0; index++) {
        struct arriving *message = arrivals_at(&i->messages, index);
        copy_to(message->frame, message->start, FRAME_BYTES, &offset, &from, &length);
        uint64_t payload = message->start + FRAME_BYTES;
        copy_to(message->payload, payload, message->end - payload, &offset, &from, &length);
    }
    for (int fold = 0; fold < 2 && length > 0; fold++) {
        uint64_t begin = offset - offset % ASIDE_BYTES;
        copy_to(i->aside, begin, ASIDE_BYTES, &offset, &from, &length);
    }
    return 1;
}

/* They have come, and their bytes lie where they belong. */
void incoming_on_packets(struct incoming *i, const struct arrival *arrival, double now_s) {
    uint64_t largest = i->numbers.num > 0 ? i->numbers.items[i->numbers.num - 1].end : 0;
    uint64_t first = whole_number(arrival->number, largest), end = arrival->offset + arrival->num_bytes;
    uint64_t num_new = ranges_add(&i->numbers, first, first + arrival->num_packets);
    ranges_keep_last(&i->numbers, 4 * MAX_RANGES);
    if (first + arrival->num_packets > largest)
        i->arrived_s = arrival->arrived_s, i->train_bytes = arrival->train_bytes;
    if (arrival->marked) i->marks += arrival->num_packets;
    i->num_unacknowledged += arrival->num_packets;
    uint64_t prefix = ranges_prefix(&i->received);
    i->payload_bytes += ranges_add(&i->received, arrival->offset, end);
    if (end > i->arrived_end) i->arrived_end = end;
    int disordered = first != largest || num_new < arrival->num_packets;
    int completed = ranges_prefix(&i->received) > prefix && complete_arrivals(i);
    int many = i->num_unacknowledged >= PACKETS_PER_ACKNOWLEDGEMENT;
    double due_s = disordered || arrival->marked || completed || many ? 0.0 : now_s + MAX_ACKNOWLEDGEMENT_DELAY_S;
    i->acknowledge_s = fmin(i->acknowledge_s, due_s);
}

static uint32_t microseconds(double duration_s) { return (uint32_t)(int64_t)llrint(duration_s * 1e6); }

/* What has come, from the largest number down; the last ranges are left out when they are too many or too far away. */
uint16_t write_ranges(const struct ranges *numbers, struct pair *pairs) {
    uint16_t num = 0;
    uint64_t above = numbers->num > 0 ? numbers->items[numbers->num - 1].end : 0;
    for (uint32_t index = numbers->num; index > 0 && num < MAX_RANGES; index--) {
        const struct range *range = &numbers->items[index - 1];
        uint64_t gap = above - range->end, length = range->end - range->start;
        if (gap > UINT16_MAX) break;
        pairs[num++] = (struct pair){gap, length < UINT16_MAX ? length : UINT16_MAX};
        if (length > UINT16_MAX) break;
        above = range->start;
    }
    return num;
}

/* Says what has come, and how much more may; to that connection. Returns its length. */
size_t incoming_acknowledge(struct incoming *i, uint32_t connection, double now_s, uint8_t *to) {
    uint8_t body[MAX_CONTROL_BYTES];
    struct pair pairs[MAX_RANGES];
    uint16_t num_ranges = write_ranges(&i->numbers, pairs);
    double delay_s = fmin(fmax(0.0, now_s - i->arrived_s), UINT32_MAX * 1e-6);
    struct acknowledged head = {microseconds(delay_s), microseconds(i->arrived_s), i->train_bytes, i->marks, num_ranges};
    memcpy(body, &head, sizeof head);
    memcpy(body + sizeof head, pairs, num_ranges * sizeof *pairs);
    uint64_t largest = num_ranges > 0 ? i->numbers.items[i->numbers.num - 1].end - 1 : 0;
    i->allowed = i->posted_end + ASIDE_BYTES;
    i->num_unacknowledged = 0;
    i->acknowledge_s = INFINITY;
    return write_datagram(to, connection, largest, ACKNOWLEDGEMENT, i->allowed, body,
                          sizeof head + num_ranges * sizeof *pairs);
}

#endif
