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
    __u8 bytes[sizeof(struct frame) + 4 * NUM_ELEMENTS];
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

/* Keeps a copy of the packet until the next one has passed. */
__noinline int hold(struct __sk_buff *skb, __u32 direction, __u32 worker, __u32 interface) {
    __u32 at = direction * MAX_WORKERS + (worker & (MAX_WORKERS - 1));
    struct held_packet *held = bpf_map_lookup_elem(&held_packets, &at);
    if (!held || __sync_val_compare_and_swap(&held->state, NOTHING, MOVING) != NOTHING) return 0;
    int whole = !bpf_skb_load_bytes(skb, 0, held->bytes, sizeof held->bytes);
    held->interface = interface;
    held->state = whole ? HELD_BACK : NOTHING;
    return whole;
}

/* Sends what has been overtaken, in the place of a packet that has done its work: results to their workers, and
 * contributions once more to this program. */
__noinline int release(struct __sk_buff *skb) {
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

static __always_inline __u16 folded(__u32 sum) {
    sum = (sum & 0xffff) + (sum >> 16);
    return (sum & 0xffff) + (sum >> 16);
}

/* The frame's headers towards a worker, or the aggregator above. UDP's checksum field holds the sum of the pseudo
 * header, which is what a device or the receiver completes (CHECKSUM_PARTIAL, as every packet that never left this machine), or nothing. */
static __always_inline void address_to(struct frame *frame, const struct worker *worker, __be32 from, __be16 port) {
    __builtin_memcpy(frame->ethernet.h_source, worker->source_mac, ETH_ALEN);
    __builtin_memcpy(frame->ethernet.h_dest, worker->mac, ETH_ALEN);
    frame->ip.saddr = from;
    frame->ip.daddr = worker->address;
    frame->ip.ttl = 64;
    frame->ip.check = 0;
    __u32 sum = 0;
    __u16 *word = (void *)&frame->ip;
#pragma unroll
    for (int i = 0; i < 10; i++) sum += word[i];
    frame->ip.check = ~folded(sum);
    frame->udp.source = port;
    frame->udp.dest = worker->port;
    if (frame->udp.check) {
        sum = (from & 0xffff) + (from >> 16) + (worker->address & 0xffff) + (worker->address >> 16);
        frame->udp.check = folded(sum + bpf_htons(IPPROTO_UDP) + frame->udp.len);
    }
}

/* Sends the packet out of an interface. `whom`: the worker's number, MAX_WORKERS for the aggregator above. */
static __noinline int leave_by(struct __sk_buff *skb, __u32 interface, __u32 job, __u32 whom) {
    long sent = bpf_clone_redirect(skb, interface, 0);
    /* What a full queue drops (NET_XMIT_DROP) is lost, as on any network. An interface that is down has no queue, and
     * its stand-in says NET_XMIT_CN: noop_enqueue(). */
    if (sent >= 0 && sent != XMIT_CN) {
        COUNT(tx);
        return 1;
    }
    struct job_counters *counts_ = bpf_map_lookup_elem(&job_counts, &job);
    if (counts_ && whom <= MAX_WORKERS) counts_->unsent[whom]++;
    return 0;
}

/* Sends the frame that the packet has become to a worker, by its port. */
static __noinline int send(struct __sk_buff *skb, struct frame *frame, __u32 job, __u32 index) {
    if (!frame) return 0;
    __u32 at = job * MAX_WORKERS + index;
    struct worker *worker = bpf_map_lookup_elem(&workers, &at);
    if (!worker || !worker->interface) return 0;
    enum fault fault = fate(DOWN, index, bpf_ntohl(frame->chunk.chunk));
    if (fault == LOSS || fault == CORRUPT) return 0;
    address_to(frame, worker, frame->ip.saddr, frame->udp.source);
    if (bpf_skb_store_bytes(skb, 0, frame, sizeof *frame, 0)) return 0;
    if (fault == REORDER && hold(skb, DOWN, index, worker->interface)) return 0;
    if (fault == DUPLICATE) bpf_clone_redirect(skb, worker->interface, 0);
    return leave_by(skb, worker->interface, job, index);
}

/* Sends the sum that the packet has become to the aggregator above. */
static __noinline int send_up(struct __sk_buff *skb, struct frame *frame, __u32 job) {
    if (!frame) return 0;
    struct worker *parent = bpf_map_lookup_elem(&parents, &job);
    if (!parent || !parent->interface) return 0;
    address_to(frame, parent, frame->ip.saddr, frame->udp.source);
    if (bpf_skb_store_bytes(skb, 0, frame, sizeof *frame, 0)) return 0;
    return leave_by(skb, parent->interface, job, MAX_WORKERS);
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

/* One contribution, under the version's lock. After what comes behind FRESH the packet carries the sum.
 * A global function, so that the verifier walks its loops once and not once for every way that leads here. */
__noinline int contribute(struct __sk_buff *skb, __u32 at, __u32 who, __u32 everybody, __u32 generation) {
    struct version *version = bpf_map_lookup_elem(&versions, &at);
    void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
    struct frame *frame = data;
    integer *elements = (void *)(frame + 1);
    if (!version || (void *)(elements + NUM_VALUES) > end) return STALE; /* the caller has looked */
    __u32 chunk = bpf_ntohl(frame->chunk.chunk), worker = who & (MAX_WORKERS - 1), bit = 1u << worker;
    __u64 now_ns = bpf_ktime_get_ns();
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
        if (frame->chunk.exponent > version->exponent) version->exponent = frame->chunk.exponent;
        if (frame->chunk.kind_size >> 4 == KIND_SATURATED) version->saturated = 1;
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
    if (what > FRESH) {
#if LANES == 1
        __u64 left = 0;
        for (int i = 0; i < NUM_VALUES; i++) elements[i] = TO_WIRE(clipped(version->sums[i], &left));
        if (left) version->saturated = 1;
#else
        for (int i = 0; i < NUM_VALUES; i++) elements[i] = TO_WIRE(divided(version->sums[i], who >> DOUBLINGS));
#endif
        frame->chunk.exponent = version->exponent;
#if LANES == 1
        __u32 kind = version->saturated ? KIND_SATURATED : KIND_DATA_32;
        frame->chunk.kind_size = kind << 4 | (frame->chunk.kind_size & 7);
#endif
    }
    if (what == COMPLETE && version->saturated) what = COMPLETE_SATURATED;
    bpf_spin_unlock(&version->lock);

    if (what >= UPWARD) wait_of(frame->chunk.job_format >> 4, worker, now_ns - first_ns);
    if (abandoned) ADD(discarded, bits_in(abandoned));
    return what;
}

/* The result of the aggregator above, under the version's lock: COMPLETE when it was awaited, STALE otherwise. */
__noinline int take(struct __sk_buff *skb, __u32 at, __u32 generation) {
    struct version *version = bpf_map_lookup_elem(&versions, &at);
    void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
    struct frame *frame = data;
    integer *elements = (void *)(frame + 1);
    if (!version || (void *)(elements + NUM_VALUES) > end) return STALE; /* the caller has looked */
    enum what what = STALE;

    bpf_spin_lock(&version->lock);
    if (version->generation == generation && version->chunk == bpf_ntohl(frame->chunk.chunk) && version->upward &&
        !version->done) {
        for (int i = 0; i < NUM_VALUES; i++) version->sums[i] = TO_HOST(elements[i]);
        version->exponent = frame->chunk.exponent;
        version->saturated = frame->chunk.kind_size >> 4 == KIND_SATURATED;
        version->done = 1;
        what = version->saturated ? COMPLETE_SATURATED : COMPLETE;
    }
    bpf_spin_unlock(&version->lock);
    return what;
}

__noinline int meet(struct __sk_buff *skb) {
    int was_held = skb->mark == WAS_HELD;
    __u32 wanted = sizeof(struct frame) + 4 * NUM_ELEMENTS;
    /* Enough to know whose it is; short control packets are not ours. */
    if (bpf_skb_pull_data(skb, skb->len < wanted ? skb->len : wanted)) return TC_ACT_OK;
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

    COUNT(rx);
    if ((frame->chunk.job_format & 15) != FORMAT) {
        COUNT(bad_format);
        return TC_ACT_SHOT;
    }
    __u32 number = frame->chunk.job_format >> 4, chunk = bpf_ntohl(frame->chunk.chunk);
    struct job *job = bpf_map_lookup_elem(&jobs, &number);
    if (!job || !job->num_workers) {
        COUNT(bad_job);
        return TC_ACT_SHOT;
    }
    __u64 who = (__u64)number << 32 | frame->ip.saddr;
    __u32 *index = bpf_map_lookup_elem(&worker_index, &who);
    struct worker *parent = bpf_map_lookup_elem(&parents, &number);
    int has_parent = parent && parent->interface;
    int from_parent = has_parent && parent->address == frame->ip.saddr && parent->port == frame->udp.source;
    if (!index && !from_parent) {
        COUNT(bad_worker);
        return TC_ACT_SHOT;
    }
    __u32 worker = index ? *index & (MAX_WORKERS - 1) : 0;
    enum fault fault = from_parent || was_held ? NO_FAULT : fate(UP, worker, chunk);
    if (fault == REORDER && hold(skb, UP, worker, skb->ifindex)) {
        ADD(rx, -1ULL); /* it is counted when it passes */
        return TC_ACT_SHOT;
    }
    if (fault == LOSS || fault == CORRUPT) { /* a receiver's checksum drops what is corrupted */
        COUNT(injected);
        return TC_ACT_SHOT;
    }
    if (!CARRIES(kind) || (32u << (frame->chunk.kind_size & 7)) != NUM_ELEMENTS || (frame->chunk.kind_size & 7) > 6) {
        COUNT(bad_size);
        return TC_ACT_SHOT;
    }
    integer *elements = (void *)(frame + 1);
    if ((void *)(elements + NUM_VALUES) > end ||
        frame->udp.len != bpf_htons(sizeof(struct udphdr) + sizeof(struct chunk_header) + 4 * NUM_ELEMENTS)) {
        COUNT(bad_length);
        return TC_ACT_SHOT;
    }
    __u32 pool = bpf_ntohs(frame->chunk.pool), slot = (pool & 0x3fff) - job->first_slot;
    __u32 half = pool >> 15;
    if (pool & 0x4000 || slot >= job->num_slots || slot != (chunk & (job->num_slots - 1)) ||
        half != ((chunk / job->num_slots) & 1)) {
        COUNT(bad_slot);
        return TC_ACT_SHOT;
    }
    int of_epoch = bpf_ntohl(frame->chunk.epoch) == job->epoch;
    __u32 key = number * MAX_WORKERS + worker;
    struct worker *sender = bpf_map_lookup_elem(&workers, &key);
    int has_joined = job->joined >> worker & 1 && sender && sender->port == frame->udp.source;
    if (!from_parent && (!of_epoch || !has_joined)) {
        COUNT(stale);
        return TC_ACT_OK; /* the program at the address answers with the epoch */
    }
    __u32 at = 2 * (pool & 0x3fff) + half;
    struct frame headers = *frame;
    headers.ip.saddr = frame->ip.daddr; /* results come from the aggregator's address and port */
    headers.udp.source = frame->udp.dest;
    __u32 num_workers = job->num_workers;
    enum what what = STALE;
    if (!from_parent)
        what = contribute(skb, at, (has_parent ? worker | HAS_PARENT : worker) | job->doublings << DOUBLINGS,
                          num_workers >= 32 ? ~0u : (1u << num_workers) - 1, job->generation);
    else if (of_epoch)
        what = take(skb, at, job->generation);
    if (from_parent) COUNT(from_parent);
    else if (what == STALE) COUNT(stale);
    else if (what == HELD) COUNT(held);
    else if (what == PENDING || what == UPWARD_AGAIN) COUNT(duplicate_pending);
    else if (what == REPEATED) COUNT(duplicate_done);
    else COUNT(fresh);
    if (what >= COMPLETE) COUNT(done);
    if (what >= COMPLETE) ADD(contributions_done, num_workers);
    if (what == COMPLETE_SATURATED) COUNT(saturated);
    /* contribute() wrote the chunk's header into the packet, too: the kind and the exponent. */
    if (bpf_skb_load_bytes(skb, offsetof(struct frame, chunk), &headers.chunk, sizeof headers.chunk)) return TC_ACT_SHOT;
    if (what >= COMPLETE)
        for (__u32 i = 0; i < MAX_WORKERS && i < num_workers; i++) send(skb, &headers, number, i);
    else if (what == REPEATED)
        send(skb, &headers, number, worker);
    else if (what == UPWARD || what == UPWARD_AGAIN)
        send_up(skb, &headers, number);
    if (fault == DUPLICATE) { /* a second one came, and found the first */
        COUNT(rx);
        if (what == STALE) COUNT(stale);
        else if (what == HELD) COUNT(held);
        else if (what == PENDING || what == FRESH || what == UPWARD || what == UPWARD_AGAIN) COUNT(duplicate_pending);
        else COUNT(duplicate_done);
        if (what >= COMPLETE || what == REPEATED) send(skb, &headers, number, worker);
    }
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
