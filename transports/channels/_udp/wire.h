/* Datagrams as wire.py says them, written and read. Little-endian machines only, as the wire is. */
#ifndef UDP_WIRE_H
#define UDP_WIRE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the wire format is little-endian"
#endif

enum kind { DATA = 1, ACKNOWLEDGEMENT, PING, CLOSE, LEFT, UNKNOWN_CONNECTION };
enum { FRAME_BYTES = 40, MAX_RANGES = 16, ASIDE_BYTES = 1 << 20, IP_OVERHEAD_BYTES = 14 + 20 + 8 };

struct header {
    uint32_t check, connection, number;
    uint8_t kind, zero;
    uint16_t length;
    uint64_t offset;
};
_Static_assert(sizeof(struct header) == 24, "as on the wire");

/* What an acknowledgement goes on with. */
struct __attribute__((packed)) acknowledged {
    uint32_t delay_us, arrived_us, train_bytes, marks;
    uint16_t num_ranges;
};
_Static_assert(sizeof(struct acknowledged) == 18, "as on the wire");

struct pair {
    uint16_t gap, length;
};

/* What CLOSE goes on with. */
struct __attribute__((packed)) closing {
    uint32_t lost;     /* 1 + the rank that its sender has lost, or 0 */
    uint64_t received; /* how much of the stream to its sender has come without a gap */
};
_Static_assert(sizeof(struct closing) == 12, "as on the wire");

enum { OVERHEAD_BYTES = IP_OVERHEAD_BYTES + sizeof(struct header),
       MAX_CONTROL_BYTES = sizeof(struct header) + sizeof(struct acknowledged) + MAX_RANGES * sizeof(struct pair) };

/* The sum of 32-bit words; an end that is no whole word counts with zeros behind it. */
static uint32_t sum(const uint8_t *bytes, size_t num_bytes) {
    uint32_t total = 0, word;
    size_t whole = num_bytes & ~(size_t)3;
    for (size_t at = 0; at < whole; at += 4) {
        memcpy(&word, bytes + at, 4);
        total += word;
    }
    word = 0;
    memcpy(&word, bytes + whole, num_bytes - whole);
    return total + word;
}

/* The sum of a piece that does not begin at a whole word. */
static uint32_t sum_at(const uint8_t *bytes, size_t num_bytes, unsigned phase) {
    if (phase == 0) return sum(bytes, num_bytes);
    uint32_t word = 0;
    size_t first = 4 - phase < num_bytes ? 4 - phase : num_bytes;
    memcpy((uint8_t *)&word + phase, bytes, first);
    return word + sum(bytes + first, num_bytes - first);
}

/* Whether that is a datagram of this protocol, as whole as it was sent. */
int read_header(const uint8_t *datagram, size_t num_bytes, struct header *header) {
    if (num_bytes < sizeof *header) return 0;
    memcpy(header, datagram, sizeof *header);
    return header->length == num_bytes - sizeof *header && header->zero == 0 && header->kind >= DATA &&
           header->kind <= UNKNOWN_CONNECTION && header->check == sum(datagram + 4, num_bytes - 4);
}

/* Write a datagram; returns its length. */
size_t write_datagram(uint8_t *to, uint32_t connection, uint64_t number, enum kind kind, uint64_t offset,
                             const void *body, uint16_t length) {
    struct header header = {0, connection, (uint32_t)number, kind, 0, length, offset};
    if (length > 0) memcpy(to + sizeof header, body, length);
    memcpy(to, &header, sizeof header);
    header.check = sum(to + 4, sizeof header - 4 + length);
    memcpy(to, &header.check, sizeof header.check);
    return sizeof header + length;
}

/* The number, of which 32 bits are known, that is nearest to one that is known (RFC 9000, A.3). */
uint64_t whole_number(uint32_t number, uint64_t near) {
    const uint64_t half = UINT64_C(1) << 31;
    return near >= half ? near + (uint32_t)(number - (uint32_t)near + (uint32_t)half) - half : number;
}

/* First and last number of a range. */
struct named {
    int64_t first, last;
};

/* What the body of an acknowledgement says of packets, the largest number in full: rising ranges. Returns how many, or -1
 * for what nobody would write. */
int read_ranges(const uint8_t *body, uint16_t length, uint64_t largest, struct acknowledged *said,
                       struct named *ranges, int max_ranges) {
    if (length < sizeof *said) return -1;
    memcpy(said, body, sizeof *said);
    if (length != sizeof *said + said->num_ranges * sizeof(struct pair) || said->num_ranges > max_ranges) return -1;
    int64_t above = (int64_t)largest + 1;
    for (int index = 0; index < said->num_ranges; index++) {
        struct pair pair;
        memcpy(&pair, body + sizeof *said + index * sizeof pair, sizeof pair);
        int64_t last = above - pair.gap - 1;
        above = last - pair.length + 1;
        if (pair.length == 0 || above < 0) return -1;
        ranges[said->num_ranges - 1 - index] = (struct named){above, last};
    }
    return said->num_ranges;
}

#endif
