/*
 * The aggregator in the kernel: a tc program (cls_bpf, direct action) on the switch's side of the link that leads to
 * the aggregator's address. Contributions are added here and go no further; the last of a chunk is turned into the
 * result and leaves by the workers' ports, through their qdiscs, so that shaping and counters stay true. Everything
 * else (JOIN, PROBE, other traffic) goes on to the address, where a program answers.
 *
 * Why on that egress and not on the ports' ingress: tc ingress runs before netfilter, where an emulated uplink's delay
 * may lie; here a packet has been received, delayed and routed. Why not XDP: it passes the qdiscs by.
 *
 * In a tree, the last of a chunk goes up to the aggregator above instead, which takes it for a worker's contribution;
 * what comes down from there is the result.
 *
 * What comes may be one datagram, or a message of several that nothing on the way has cut up (UDP_SEGMENT in udp(7)). Its
 * chunks are added one by one, and where all of them have become results, or all are requested again, the message leaves
 * as one, too. Where only some have, these leave one by one, from what the versions keep.
 *
 * The rules are those of switch_agg/aggregator.py; one conformance suite runs both. What is missing in this one: partial sums
 * and compatibility with p4app-switchML's clients. Compiled once for each NUM_ELEMENTS, because the verifier
 * wants to see the end of every loop, and for each number of LANES: integers in an element, of which the sums of
 * narrower ones than 32 bits leave divided by a power of two (switch_agg/payload.py). Sums of 32 bits are kept in 64 and
 * clipped, and then flagged, when they leave: whatever the order, as in the core.
 */
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#ifndef NUM_ELEMENTS
#define NUM_ELEMENTS 256
#endif
#ifndef LANES
#define LANES 1
#endif
#define NUM_VALUES (LANES * NUM_ELEMENTS)

enum { MAX_WORKERS = 32, MAX_JOBS = 16, FORMAT = 2, EXPONENT_ZERO = -128 };
enum { KIND_SATURATED = 6, KIND_DATA_16 = 7, KIND_DATA_8 = 8, KIND_DATA_32 = 9 };
#if LANES == 1
typedef __s32 integer;
typedef __s64 wide; /* of which 2 to the 32 contributions make no overflow */
#define TO_HOST(value) ((__s32)bpf_ntohl(value))
#define TO_WIRE(value) bpf_htonl(value)
#define CARRIES(kind) ((kind) == KIND_DATA_32 || (kind) == KIND_SATURATED)
#elif LANES == 2
typedef __s16 integer;
typedef __s32 wide;
#define TO_HOST(value) ((__s16)bpf_ntohs(value))
#define TO_WIRE(value) bpf_htons(value)
#define CARRIES(kind) ((kind) == KIND_DATA_16)
#else
typedef __s8 integer;
typedef __s32 wide;
#define TO_HOST(value) (value)
#define TO_WIRE(value) (value)
#define CARRIES(kind) ((kind) == KIND_DATA_8)
#endif
enum { UP, DOWN };
enum { XMIT_CN = 2 }; /* NET_XMIT_CN of linux/netdevice.h */
enum { HAS_PARENT = 1 << 8, DOUBLINGS = 16 }; /* beside the number of a worker; from that bit on: of what divides a sum */
enum fault { NO_FAULT, LOSS, DUPLICATE, CORRUPT, REORDER };
enum held { NOTHING, HELD_BACK, OVERTAKEN, MOVING };
enum { WAS_HELD = 0x68656c64 }; /* skb->mark of a contribution that was held back and comes again */

struct chunk_header {
    __u8 kind_size, job_format;
    __be32 chunk;
    __be16 pool;
    __s8 exponent;
    __u8 contributions;
    __be32 epoch;
} __attribute__((packed));

struct frame {
    struct ethhdr ethernet;
    struct iphdr ip;
    struct udphdr udp;
    struct chunk_header chunk;
} __attribute__((packed));

enum {
    DATAGRAM_BYTES = sizeof(struct chunk_header) + 4 * NUM_ELEMENTS,
    HEADERS_BYTES = offsetof(struct frame, chunk),
    FRAME_BYTES = HEADERS_BYTES + DATAGRAM_BYTES,
    /* The verifier takes no pointer more than 65535 bytes into a packet. */
    MOST_CHUNKS = (0xffff - FRAME_BYTES) / DATAGRAM_BYTES,
    MAX_CHUNKS = MOST_CHUNKS < 64 ? MOST_CHUNKS : 64, /* of a message */
};

struct job {
    __u32 num_workers; /* 0: nobody configured it */
    __u32 epoch, joined, first_slot, num_slots;
    __u32 generation; /* grows with every epoch, and with every job that takes these slots over */
    __u32 doublings;  /* a sum leaves divided by two to this power */
};
struct worker {
    __be32 address;
    __be16 port;
    __u8 source_mac[ETH_ALEN], mac[ETH_ALEN];
    __u16 padding;
    __u32 interface;
};
struct version {
    struct bpf_spin_lock lock;
    __u32 generation; /* of the job when the chunk began; 0: never used */
    __u32 chunk, seen, done, saturated;
    __s32 exponent;
    __u32 upward; /* the sum has gone to the aggregator above, whose result is awaited */
    __u64 first_ns; /* when its first contribution came */
    __u32 what, unused; /* what the last contribution was: see contribute() */
    wide sums[NUM_VALUES];
};
/* In the order of switch_agg/dataplanes/ebpf.py. */
struct counters {
    __u64 rx, fresh, duplicate_pending, duplicate_done, stale, held, bad_length, bad_format, bad_size, bad_slot, bad_job, bad_worker;
    __u64 from_parent, injected, done, contributions_done, discarded, saturated, tx;
};
/* One direction's faults: a draw below a threshold (of 2 to the 53) meets that fault. */
struct faults {
    __u64 loss_below, duplicate_below, corrupt_below, reorder_below;
    __u32 listed; /* whether any is listed by name */
    __u32 reorders; /* whether any, in either direction, may hold a packet back */
};
struct draw {
    struct bpf_spin_lock lock;
    __u64 state;
};
struct listed_key {
    __u32 direction, worker, chunk, occurrence; /* occurrence 0 counts how many there were */
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, MAX_JOBS);
    __type(key, __u32);
    __type(value, struct job);
} jobs SEC(".maps");
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, MAX_JOBS * MAX_WORKERS);
    __type(key, __u32);
    __type(value, struct worker);
} workers SEC(".maps");
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, MAX_JOBS);
    __type(key, __u32);
    __type(value, struct worker); /* interface 0: the job has none above */
} parents SEC(".maps");
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, MAX_JOBS * MAX_WORKERS);
    __type(key, __u64); /* job and IPv4 address */
    __type(value, __u32);
} worker_index SEC(".maps");
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 2); /* twice the slots: set before loading */
    __type(key, __u32);
    __type(value, struct version);
} versions SEC(".maps");
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct counters);
} counts SEC(".maps");
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 2);
    __type(key, __u32);
    __type(value, struct faults);
} fault_rates SEC(".maps");
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 2 * MAX_WORKERS);
    __type(key, __u32);
    __type(value, struct draw);
} draws SEC(".maps");
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 4096);
    __type(key, struct listed_key);
    __type(value, __u32);
} listed SEC(".maps");

/* By direction and worker: a packet that is held back until the next of its kind has passed. */
struct held_packet {
    __u32 state, interface;
    __u8 bytes[FRAME_BYTES];
};
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 2 * MAX_WORKERS);
    __type(key, __u32);
    __type(value, struct held_packet);
} held_packets SEC(".maps");

/* By job: chunks by the logarithm of the microseconds between their first and last contribution, and by who was last;
 * packets that could not be sent, by worker, and to the aggregator above. */
struct job_counters {
    __u64 gaps[32], last[MAX_WORKERS], unsent[MAX_WORKERS + 1];
};
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, MAX_JOBS);
    __type(key, __u32);
    __type(value, struct job_counters);
} job_counts SEC(".maps");

/* What this CPU is at: one message. */
struct chunk_state {
    __u32 at, chunk, what, again; /* its version, its number; enum what; whether a fault doubled the contribution */
};
struct message {
    __u64 now_ns;
    __u32 job, worker;  /* numbers */
    __u32 who;          /* the worker with HAS_PARENT and DOUBLINGS, for contribute() */
    __u32 everybody, epoch, generation, first_slot, num_slots, num_workers;
    __u32 from_parent, has_joined, was_held, length_differs, interface;
    __u32 num_chunks; /* that leave with each packet */
    struct frame headers; /* of what leaves */
    __u8 kind_size, job_format;
    struct chunk_state chunks[MAX_CHUNKS];
};
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct message);
} messages SEC(".maps");

static __always_inline struct message *current_message(void) {
    __u32 zero = 0;
    return bpf_map_lookup_elem(&messages, &zero);
}

#define barrier() asm volatile("" ::: "memory")
#define ADD(what, amount) \
    do { \
        __u32 zero = 0; \
        struct counters *c = bpf_map_lookup_elem(&counts, &zero); \
        if (c) c->what += amount; \
    } while (0)
#define COUNT(what) ADD(what, 1)

/* Another packet of that direction is passing: whether one was held back for it. */
static __noinline int overtake(__u32 direction, __u32 worker) {
    __u32 at = direction * MAX_WORKERS + (worker & (MAX_WORKERS - 1));
    struct held_packet *held = bpf_map_lookup_elem(&held_packets, &at);
    return held && __sync_val_compare_and_swap(&held->state, HELD_BACK, OVERTAKEN) == HELD_BACK;
}

/* xorshift64* (switch_agg/faults.py); the seed is the first state. */
static __noinline enum fault fate(__u32 direction, __u32 worker, __u32 chunk) {
    struct faults *rates = bpf_map_lookup_elem(&fault_rates, &direction);
    if (!rates || (!rates->corrupt_below && !rates->listed)) return NO_FAULT;
    __u32 at = direction * MAX_WORKERS + (worker & (MAX_WORKERS - 1));
    struct draw *draw = bpf_map_lookup_elem(&draws, &at);
    if (!draw) return NO_FAULT;
    bpf_spin_lock(&draw->lock);
    __u64 state = draw->state;
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    draw->state = state;
    bpf_spin_unlock(&draw->lock);
    __u64 share = state * 0x2545f4914f6cdd1dULL >> 11;
    enum fault fault = share < rates->loss_below        ? LOSS
                       : share < rates->duplicate_below ? DUPLICATE
                       : share < rates->reorder_below   ? REORDER
                       : share < rates->corrupt_below   ? CORRUPT
                                                        : NO_FAULT;
    if (rates->listed) {
        struct listed_key key = {.direction = direction, .worker = worker, .chunk = chunk};
        __u32 *seen = bpf_map_lookup_elem(&listed, &key);
        if (seen) {
            key.occurrence = __sync_fetch_and_add(seen, 1) + 1;
            __u32 *which = bpf_map_lookup_elem(&listed, &key);
            if (which) fault = *which;
        }
    }
    /* One is held back at a time. */
    if (rates->reorders && overtake(direction, worker) && fault == REORDER) return NO_FAULT;
    return fault;
}

static __always_inline __u16 folded(__u32 sum) {
    sum = (sum & 0xffff) + (sum >> 16);
    return (sum & 0xffff) + (sum >> 16);
}

static __always_inline __u16 pseudo_sum(const struct frame *frame) {
    __be32 from = frame->ip.saddr, to = frame->ip.daddr;
    __u32 sum = (from & 0xffff) + (from >> 16) + (to & 0xffff) + (to >> 16);
    return folded(sum + bpf_htons(IPPROTO_UDP) + frame->udp.len);
}

/* A checksum over all of a datagram that is about to become another: nobody would complete it anew, and UDP over IPv4
 * may have none (RFC 768). Packets that a device or the receiver completes (CHECKSUM_PARTIAL) hold the sum of the pseudo
 * header, as all do that never left this machine and that nothing has cut (skb_segment) on their way. */
static __always_inline void drop_whole_sum(struct frame *frame) {
    if (frame->udp.check != pseudo_sum(frame)) frame->udp.check = 0;
}

/* The sums over what the frame's headers say: UDP's that of the pseudo header, or none. */
static __always_inline void seal(struct frame *frame) {
    frame->ip.check = 0;
    __u32 sum = 0;
    __u16 *word = (void *)&frame->ip;
#pragma unroll
    for (int i = 0; i < 10; i++) sum += word[i];
    frame->ip.check = ~folded(sum);
    if (frame->udp.check) frame->udp.check = pseudo_sum(frame);
}

/* One chunk's lengths. */
static __always_inline void shorten(struct frame *frame) {
    frame->ip.tot_len = bpf_htons(FRAME_BYTES - sizeof(struct ethhdr));
    frame->udp.len = bpf_htons(sizeof(struct udphdr) + DATAGRAM_BYTES);
}

/* Keeps a copy of the chunk, with headers of its own, until the next packet has passed. */
__noinline int hold(struct __sk_buff *skb, __u32 direction, __u32 worker, __u32 interface, __u32 index) {
    __u32 at = direction * MAX_WORKERS + (worker & (MAX_WORKERS - 1));
    struct held_packet *held = bpf_map_lookup_elem(&held_packets, &at);
    if (!held || __sync_val_compare_and_swap(&held->state, NOTHING, MOVING) != NOTHING) return 0;
    __u32 from = HEADERS_BYTES + (index < MAX_CHUNKS ? index : 0) * DATAGRAM_BYTES;
    int whole = !bpf_skb_load_bytes(skb, 0, held->bytes, HEADERS_BYTES) &&
                !bpf_skb_load_bytes(skb, from, held->bytes + HEADERS_BYTES, DATAGRAM_BYTES);
    drop_whole_sum((struct frame *)held->bytes);
    shorten((struct frame *)held->bytes);
    seal((struct frame *)held->bytes);
    held->interface = interface;
    held->state = whole ? HELD_BACK : NOTHING;
    return whole;
}

/* Sends what has been overtaken, in the place of a packet that has done its work: results to their workers, and
 * contributions once more to this program. */
__noinline int release(struct __sk_buff *skb) {
    if (skb->len != FRAME_BYTES && bpf_skb_change_tail(skb, FRAME_BYTES, 0)) return 0;
    for (__u32 i = 0; i < 2 * MAX_WORKERS; i++) {
        __u32 at = i;
        struct held_packet *held = bpf_map_lookup_elem(&held_packets, &at);
        if (!held || __sync_val_compare_and_swap(&held->state, OVERTAKEN, MOVING) != OVERTAKEN) continue;
        skb->mark = i < MAX_WORKERS ? WAS_HELD : 0;
        int written = !bpf_skb_store_bytes(skb, 0, held->bytes, sizeof held->bytes, 0);
        __u32 interface = held->interface;
        held->state = NOTHING;
        if (written) bpf_clone_redirect(skb, interface, 0);
    }
    return 0;
}

/* The headers towards a worker, or the aggregator above. */
static __always_inline void address_to(struct frame *frame, const struct worker *worker) {
    __builtin_memcpy(frame->ethernet.h_source, worker->source_mac, ETH_ALEN);
    __builtin_memcpy(frame->ethernet.h_dest, worker->mac, ETH_ALEN);
    frame->ip.daddr = worker->address;
    frame->ip.ttl = 64;
    frame->udp.dest = worker->port;
    seal(frame);
}

/* Sends the packet out of an interface. `whom`: the worker's number, MAX_WORKERS for the aggregator above. */
static __noinline int leave_by(struct __sk_buff *skb, struct message *message, __u32 interface, __u32 whom) {
    if (!message) return 0;
    __u32 job = message->job, num_chunks = message->num_chunks;
    long sent = bpf_clone_redirect(skb, interface, 0);
    /* What a full queue drops (NET_XMIT_DROP) is lost, as on any network. An interface that is down has no queue, and
     * its stand-in says NET_XMIT_CN: noop_enqueue(). */
    if (sent >= 0 && sent != XMIT_CN) {
        ADD(tx, num_chunks);
        return 1;
    }
    struct job_counters *counts_ = bpf_map_lookup_elem(&job_counts, &job);
    if (counts_ && whom <= MAX_WORKERS) counts_->unsent[whom] += num_chunks;
    return 0;
}

/* Sends what the packet has become to a worker, by its port. Messages of several chunks meet no faults: they leave one
 * by one where there are any. */
static __noinline int send(struct __sk_buff *skb, struct message *message, __u32 index, __u32 chunk) {
    if (!message) return 0;
    __u32 at = message->job * MAX_WORKERS + index;
    struct worker *worker = bpf_map_lookup_elem(&workers, &at);
    if (!worker || !worker->interface) return 0;
    enum fault fault = message->num_chunks == 1 ? fate(DOWN, index, chunk) : NO_FAULT;
    if (fault == LOSS || fault == CORRUPT) return 0;
    address_to(&message->headers, worker);
    if (bpf_skb_store_bytes(skb, 0, &message->headers, HEADERS_BYTES, 0)) return 0;
    if (fault == REORDER && hold(skb, DOWN, index, worker->interface, 0)) return 0;
    if (fault == DUPLICATE) bpf_clone_redirect(skb, worker->interface, 0);
    return leave_by(skb, message, worker->interface, index);
}

/* Sends the sum that the packet has become to the aggregator above. */
static __noinline int send_up(struct __sk_buff *skb, struct message *message) {
    if (!message) return 0;
    __u32 job = message->job;
    struct worker *parent = bpf_map_lookup_elem(&parents, &job);
    if (!parent || !parent->interface) return 0;
    address_to(&message->headers, parent);
    if (bpf_skb_store_bytes(skb, 0, &message->headers, HEADERS_BYTES, 0)) return 0;
    return leave_by(skb, message, parent->interface, MAX_WORKERS);
}

static __always_inline __u32 bits_in(__u32 word) {
    word -= word >> 1 & 0x55555555;
    word = (word & 0x33333333) + (word >> 2 & 0x33333333);
    return ((word + (word >> 4)) & 0x0f0f0f0f) * 0x01010101 >> 24;
}

/* Notes who was last, and how long after the first. */
__noinline int wait_of(__u32 job, __u32 worker, __u64 gap_ns) {
    struct job_counters *waited = bpf_map_lookup_elem(&job_counts, &job);
    if (!waited) return 0;
    __u64 gap_us = gap_ns / 1000;
    __u32 left = gap_us >> 31 ? 0x7fffffff : gap_us, bucket = 0;
    /* The number of bits of the microseconds. */
    left |= left >> 1;
    left |= left >> 2;
    left |= left >> 4;
    left |= left >> 8;
    left |= left >> 16;
    bucket = bits_in(left);
    waited->gaps[bucket & 31]++;
    waited->last[worker & (MAX_WORKERS - 1)]++;
    return 0;
}

enum what { STALE, HELD, PENDING, FRESH, UPWARD_AGAIN, REPEATED, UPWARD, COMPLETE, COMPLETE_SATURATED };

#if LANES == 1
/* Into 32 bits; `left` notes whether it has left them. Without a branch, of which the verifier would walk both sides. */
static __always_inline __s32 clipped(__s64 sum, __u64 *left) {
    __u64 over = (__u64)(sum + 0x80000000LL) >> 32;
    __s64 all = (__s64)(over | -over) >> 63; /* all ones when it has */
    *left |= over;
    return (sum & ~all) | (((sum >> 63) ^ 0x7fffffff) & all);
}
#else
/* By two to a power, half to even. */
static __always_inline __s32 divided(__s32 sum, __u32 power) {
    power &= 7; /* the verifier wants a bound */
    if (power) sum = (sum + (1 << (power - 1)) - 1 + (sum >> power & 1)) >> power;
    return sum;
}
#endif

/* Writes a version's sums into the packet, at the chunk whose header that is. The lock is held. */
static __always_inline void write_sums(struct version *version, struct chunk_header *header, __u32 who) {
    integer *elements = (void *)(header + 1);
#if LANES == 1
    (void)who; /* has what narrow sums are divided by */
    __u64 left = 0;
    for (int i = 0; i < NUM_VALUES; i++) elements[i] = TO_WIRE(clipped(version->sums[i], &left));
    if (left) version->saturated = 1;
    __u32 kind = version->saturated ? KIND_SATURATED : KIND_DATA_32;
    header->kind_size = kind << 4 | (header->kind_size & 7);
#else
    for (int i = 0; i < NUM_VALUES; i++) elements[i] = TO_WIRE(divided(version->sums[i], who >> DOUBLINGS));
#endif
    header->exponent = version->exponent;
}

/* A chunk of the message, by its place; NULL where the packet has no such chunk. */
static __always_inline struct chunk_header *chunk_at(struct __sk_buff *skb, __u32 index) {
    void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
    struct chunk_header *header = data + HEADERS_BYTES + index * DATAGRAM_BYTES;
    return (void *)header + DATAGRAM_BYTES > end ? NULL : header;
}

/* One contribution, under the version's lock. After what comes behind FRESH the packet carries the sum.
 * A global function, so that the verifier walks its loops once and not once for every way that leads here. */
__noinline int contribute(struct __sk_buff *skb, __u32 index) {
    struct message *message = current_message();
    if (!message || index >= MAX_CHUNKS) return STALE;
    __u32 at = message->chunks[index].at, chunk = message->chunks[index].chunk;
    struct version *version = bpf_map_lookup_elem(&versions, &at);
    struct chunk_header *header = chunk_at(skb, index);
    if (!version || !header) return STALE; /* the caller has looked */
    integer *elements = (void *)(header + 1);
    __u32 who = message->who, worker = who & (MAX_WORKERS - 1), bit = 1u << worker;
    __u32 generation = message->generation, everybody = message->everybody;
    __u64 now_ns = message->now_ns;
    enum what what = FRESH;
    __u32 abandoned = 0;
    __u64 first_ns;

    bpf_spin_lock(&version->lock);
    __s32 newer = generation - version->generation; /* this packet may have waited while another epoch began */
    int begins = newer > 0 || (newer == 0 && (__s32)(chunk - version->chunk) > 0);
    if (begins) {
        /* A correct worker begins the next chunk here only when everybody has this one's result. */
        if (newer == 0 && !version->done) what = HELD;
        else if (!version->done) abandoned = version->seen;
    } else if (newer < 0 || chunk != version->chunk) {
        what = STALE;
    } else if (version->seen & bit) {
        what = version->done ? REPEATED : version->upward ? UPWARD_AGAIN : PENDING;
    }
    if (begins && what == FRESH) {
        version->generation = generation;
        version->chunk = chunk;
        version->seen = version->done = version->saturated = version->upward = 0;
        version->exponent = EXPONENT_ZERO;
        version->first_ns = now_ns;
    }
    first_ns = version->first_ns;
    if (what == FRESH) {
        int first = !version->seen;
        version->seen |= bit;
        if (header->exponent > version->exponent) version->exponent = header->exponent;
        if (header->kind_size >> 4 == KIND_SATURATED) version->saturated = 1;
        if (version->seen == everybody) {
            what = who & HAS_PARENT ? UPWARD : COMPLETE;
            version->upward = what == UPWARD;
            version->done = what == COMPLETE;
        }
        if (first) {
            for (int i = 0; i < NUM_VALUES; i++) version->sums[i] = TO_HOST(elements[i]);
        } else {
            for (int i = 0; i < NUM_VALUES; i++) version->sums[i] += TO_HOST(elements[i]);
        }
    }
    version->what = what;
    barrier();
    what = version->what; /* the verifier knows nothing of it now, and walks the loop below once, not for each */
    if (what > FRESH) write_sums(version, header, who);
    if (what == COMPLETE && version->saturated) what = COMPLETE_SATURATED;
    bpf_spin_unlock(&version->lock);

    /* Each CPU looks at the clock when its message comes, and who came first may get the lock last. */
    if (what >= UPWARD) wait_of(message->job, worker, now_ns > first_ns ? now_ns - first_ns : 0);
    if (abandoned) ADD(discarded, bits_in(abandoned));
    return what;
}

/* The result of the aggregator above, under the version's lock: COMPLETE when it was awaited, STALE otherwise. */
__noinline int take(struct __sk_buff *skb, __u32 index) {
    struct message *message = current_message();
    if (!message || index >= MAX_CHUNKS) return STALE;
    __u32 at = message->chunks[index].at, chunk = message->chunks[index].chunk;
    struct version *version = bpf_map_lookup_elem(&versions, &at);
    struct chunk_header *header = chunk_at(skb, index);
    if (!version || !header) return STALE; /* the caller has looked */
    integer *elements = (void *)(header + 1);
    __u32 generation = message->generation;
    enum what what = STALE;

    bpf_spin_lock(&version->lock);
    if (version->generation == generation && version->chunk == chunk && version->upward && !version->done) {
        for (int i = 0; i < NUM_VALUES; i++) version->sums[i] = TO_HOST(elements[i]);
        version->exponent = header->exponent;
        version->saturated = header->kind_size >> 4 == KIND_SATURATED;
        version->done = 1;
        what = version->saturated ? COMPLETE_SATURATED : COMPLETE;
    }
    bpf_spin_unlock(&version->lock);
    return what;
}

/* Makes the packet, which has room for one chunk, the answer to one of the message's, from what its version keeps. 0 where
 * that has become something else meanwhile: then whoever misses the answer repeats. */
__noinline int recall(struct __sk_buff *skb, __u32 index) {
    struct message *message = current_message();
    if (!message || index >= MAX_CHUNKS) return 0;
    __u32 at = message->chunks[index].at, chunk = message->chunks[index].chunk, what = message->chunks[index].what;
    struct version *version = bpf_map_lookup_elem(&versions, &at);
    struct chunk_header *header = chunk_at(skb, 0);
    if (!version || !header) return 0;
    header->kind_size = message->kind_size;
    header->job_format = message->job_format;
    header->chunk = bpf_htonl(chunk);
    header->pool = bpf_htons((at >> 1) | (at & 1) << 15);
    header->contributions = 0;
    header->epoch = bpf_htonl(message->epoch);
    __u32 who = message->who, generation = message->generation;
    __u32 done = what == REPEATED || what >= COMPLETE;
    int same = 0;

    bpf_spin_lock(&version->lock);
    if (version->generation == generation && version->chunk == chunk && version->done == done &&
        (done || version->upward)) {
        write_sums(version, header, who);
        same = 1;
    }
    bpf_spin_unlock(&version->lock);
    return same;
}

/* What is to be done with a chunk of a message: one bit, so that those of all chunks can be put together. */
enum outcome { KEPT = 1, TO_EVERYBODY = 2, TO_SENDER = 4, TO_PARENT = 8, PASSED_ON = 16 };
enum { ANSWERS = TO_EVERYBODY | TO_SENDER | TO_PARENT };

static __always_inline enum outcome outcome_of(enum what what) {
    if (what >= COMPLETE) return TO_EVERYBODY;
    if (what == REPEATED) return TO_SENDER;
    return what == UPWARD || what == UPWARD_AGAIN ? TO_PARENT : KEPT;
}

/* One chunk of the message: looks at its header, adds it, counts what it was. Returns an enum outcome. */
__noinline int meet_chunk(struct __sk_buff *skb, __u32 index) {
    struct message *message = current_message();
    if (!message || index >= MAX_CHUNKS) return KEPT;
    struct chunk_state *state = &message->chunks[index];
    state->what = STALE;
    state->again = 0;
    void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
    struct chunk_header *header = data + HEADERS_BYTES + index * DATAGRAM_BYTES;
    if ((void *)(header + 1) > end) {
        COUNT(bad_length);
        return KEPT;
    }
    if (header->job_format != message->job_format) { /* of the message's first */
        COUNT(bad_format);
        return KEPT;
    }
    __u32 chunk = state->chunk = bpf_ntohl(header->chunk), kind = header->kind_size >> 4, worker = message->worker;
    enum fault fault = message->from_parent || message->was_held ? NO_FAULT : fate(UP, worker, chunk);
    if (fault == REORDER && !message->length_differs && hold(skb, UP, worker, message->interface, index)) {
        ADD(rx, -1ULL); /* it is counted when it passes */
        return KEPT;
    }
    if (fault == LOSS || fault == CORRUPT) { /* a receiver's checksum drops what is corrupted */
        COUNT(injected);
        return KEPT;
    }
    data = (void *)(long)skb->data; /* hold() may have moved it, for what the verifier knows */
    end = (void *)(long)skb->data_end;
    header = data + HEADERS_BYTES + index * DATAGRAM_BYTES;
    if ((void *)(header + 1) > end) return KEPT;
    __u32 code = header->kind_size & 7;
    if (!CARRIES(kind) || (32u << code) != NUM_ELEMENTS || code > 6) {
        COUNT(bad_size);
        return KEPT;
    }
    if ((void *)header + DATAGRAM_BYTES > end || message->length_differs) {
        COUNT(bad_length);
        return KEPT;
    }
    __u32 pool = bpf_ntohs(header->pool), slot = (pool & 0x3fff) - message->first_slot, half = pool >> 15;
    __u32 num_slots = message->num_slots;
    if (pool & 0x4000 || slot >= num_slots || slot != (chunk & (num_slots - 1)) ||
        half != ((chunk / num_slots) & 1)) {
        COUNT(bad_slot);
        return KEPT;
    }
    state->at = 2 * (pool & 0x3fff) + half;
    int of_epoch = bpf_ntohl(header->epoch) == message->epoch;
    if (!message->from_parent && (!of_epoch || !message->has_joined)) {
        COUNT(stale);
        return PASSED_ON; /* the program at the address answers with the epoch */
    }
    enum what what = STALE;
    if (!message->from_parent) what = contribute(skb, index);
    else if (of_epoch) what = take(skb, index);
    state->what = what;
    if (message->from_parent) COUNT(from_parent);
    else if (what == STALE) COUNT(stale);
    else if (what == HELD) COUNT(held);
    else if (what == PENDING || what == UPWARD_AGAIN) COUNT(duplicate_pending);
    else if (what == REPEATED) COUNT(duplicate_done);
    else COUNT(fresh);
    if (what >= COMPLETE) COUNT(done);
    if (what >= COMPLETE) ADD(contributions_done, message->num_workers);
    if (what == COMPLETE_SATURATED) COUNT(saturated);
    if (fault == DUPLICATE) { /* a second one came, and found the first */
        state->again = 1;
        COUNT(rx);
        if (what == STALE) COUNT(stale);
        else if (what == HELD) COUNT(held);
        else if (what == PENDING || what == FRESH || what == UPWARD || what == UPWARD_AGAIN) COUNT(duplicate_pending);
        else COUNT(duplicate_done);
    }
    return outcome_of(what);
}

/* Sends what the packet has become where that chunk's outcome sends it. */
__noinline int answer(struct __sk_buff *skb, __u32 index) {
    struct message *message = current_message();
    if (!message || index >= MAX_CHUNKS) return 0;
    __u32 chunk = message->chunks[index].chunk, worker = message->worker;
    enum outcome outcome = outcome_of(message->chunks[index].what);
    if (outcome == TO_EVERYBODY)
        for (__u32 i = 0; i < MAX_WORKERS && i < message->num_workers; i++) send(skb, message, i, chunk);
    else if (outcome == TO_SENDER)
        send(skb, message, worker, chunk);
    else if (outcome == TO_PARENT)
        send_up(skb, message);
    if (message->chunks[index].again && outcome & (TO_EVERYBODY | TO_SENDER)) send(skb, message, worker, chunk);
    return 0;
}

/* Whether any fault may meet a packet. */
static __always_inline int has_faults(void) {
    __u32 up = UP, down = DOWN;
    struct faults *ups = bpf_map_lookup_elem(&fault_rates, &up), *downs = bpf_map_lookup_elem(&fault_rates, &down);
    return !ups || !downs || ups->corrupt_below || ups->listed || downs->corrupt_below || downs->listed;
}

/* Sends the answers to a message's chunks one by one, in its place. */
static __noinline int answer_one_by_one(struct __sk_buff *skb, struct message *message, __u32 num_chunks) {
    if (!message || bpf_skb_change_tail(skb, FRAME_BYTES, 0)) return 0; /* lost, and repeated */
    if (bpf_skb_pull_data(skb, FRAME_BYTES)) return 0;
    shorten(&message->headers);
    message->num_chunks = 1;
    for (__u32 i = 0; i < MAX_CHUNKS; i++) {
        if (i >= num_chunks) break;
        if (outcome_of(message->chunks[i].what) & ANSWERS && recall(skb, i)) answer(skb, i);
    }
    return 0;
}

__noinline int meet(struct __sk_buff *skb) {
    struct message *message = current_message();
    if (!message) return TC_ACT_OK;
    /* Enough to know whose it is; short control packets are not ours. */
    if (bpf_skb_pull_data(skb, skb->len < FRAME_BYTES ? skb->len : FRAME_BYTES)) return TC_ACT_OK;
    void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
    struct frame *frame = data;
    if ((void *)&frame->chunk > end || frame->ethernet.h_proto != bpf_htons(ETH_P_IP)) return TC_ACT_OK;
    if (frame->ip.version != 4 || frame->ip.ihl != 5 || frame->ip.protocol != IPPROTO_UDP) return TC_ACT_OK;
    if (frame->ip.frag_off & bpf_htons(0x3fff)) return TC_ACT_OK; /* fragments: the address' stack puts them together */
    if ((bpf_ntohs(frame->udp.dest) & 0xfff0) != 0xbee0) return TC_ACT_OK;
    if ((void *)(frame + 1) > end) {
        COUNT(rx);
        COUNT(bad_length);
        return TC_ACT_SHOT;
    }
    __u32 kind = frame->chunk.kind_size >> 4;
    if (kind < KIND_SATURATED || kind > KIND_DATA_32) return TC_ACT_OK;

    __u32 udp_bytes = bpf_ntohs(frame->udp.len), each_bytes = skb->gso_size, num_chunks = 1;
    if (each_bytes && udp_bytes > sizeof(struct udphdr))
        num_chunks = (udp_bytes - sizeof(struct udphdr) + each_bytes - 1) / each_bytes;
    message->length_differs = each_bytes ? each_bytes != DATAGRAM_BYTES || num_chunks > MAX_CHUNKS
                                         : udp_bytes != sizeof(struct udphdr) + DATAGRAM_BYTES;
    ADD(rx, num_chunks);
    if ((frame->chunk.job_format & 15) != FORMAT) {
        ADD(bad_format, num_chunks);
        return TC_ACT_SHOT;
    }
    __u32 number = frame->chunk.job_format >> 4;
    struct job *job = bpf_map_lookup_elem(&jobs, &number);
    if (!job || !job->num_workers) {
        ADD(bad_job, num_chunks);
        return TC_ACT_SHOT;
    }
    __u64 who = (__u64)number << 32 | frame->ip.saddr;
    __u32 *index = bpf_map_lookup_elem(&worker_index, &who);
    struct worker *parent = bpf_map_lookup_elem(&parents, &number);
    int has_parent = parent && parent->interface;
    int from_parent = has_parent && parent->address == frame->ip.saddr && parent->port == frame->udp.source;
    if (!index && !from_parent) {
        ADD(bad_worker, num_chunks);
        return TC_ACT_SHOT;
    }
    if (message->length_differs && num_chunks > 1) {
        ADD(bad_length, num_chunks);
        return TC_ACT_SHOT;
    }
    __u32 worker = index ? *index & (MAX_WORKERS - 1) : 0, key = number * MAX_WORKERS + worker;
    struct worker *sender = bpf_map_lookup_elem(&workers, &key);
    message->now_ns = bpf_ktime_get_ns();
    message->job = number;
    message->worker = worker;
    message->who = (has_parent ? worker | HAS_PARENT : worker) | job->doublings << DOUBLINGS;
    message->everybody = job->num_workers >= 32 ? ~0u : (1u << job->num_workers) - 1;
    message->epoch = job->epoch;
    message->generation = job->generation;
    message->first_slot = job->first_slot;
    message->num_slots = job->num_slots;
    message->num_workers = job->num_workers;
    message->from_parent = from_parent;
    message->has_joined = job->joined >> worker & 1 && sender && sender->port == frame->udp.source;
    message->was_held = skb->mark == WAS_HELD;
    message->interface = skb->ifindex;
    message->num_chunks = num_chunks;
    message->kind_size = frame->chunk.kind_size;
    message->job_format = frame->chunk.job_format;
    message->headers = *frame;
    drop_whole_sum(&message->headers);
    message->headers.ip.saddr = frame->ip.daddr; /* results come from the aggregator's address and port */
    message->headers.udp.source = frame->udp.dest;
    if (num_chunks > 1 && bpf_skb_pull_data(skb, skb->len)) { /* no memory: lost, and repeated */
        ADD(rx, -(__u64)num_chunks);
        return TC_ACT_SHOT;
    }

    __u32 outcomes = 0;
    for (__u32 i = 0; i < MAX_CHUNKS; i++) {
        if (i >= num_chunks) break;
        outcomes |= meet_chunk(skb, i);
    }
    if (outcomes == PASSED_ON) return TC_ACT_OK;
    if (!(outcomes & ANSWERS)) return TC_ACT_SHOT;
    if (num_chunks == 1 || (!has_faults() && (outcomes == TO_EVERYBODY || outcomes == TO_SENDER || outcomes == TO_PARENT)))
        answer(skb, 0);
    else
        answer_one_by_one(skb, message, num_chunks);
    return TC_ACT_SHOT;
}

SEC("tc")
int aggregate(struct __sk_buff *skb) {
    int verdict = meet(skb);
    __u32 up = UP;
    struct faults *rates = bpf_map_lookup_elem(&fault_rates, &up);
    if (verdict == TC_ACT_SHOT && rates && rates->reorders) release(skb);
    return verdict;
}

char _license[] SEC("license") = "Dual MIT/GPL"; /* the helpers used are for GPL-compatible programs */
