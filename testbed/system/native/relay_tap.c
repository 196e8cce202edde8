/*
 * Carries every packet between pairs of TAP devices as a link would: rate, byte queue, marks, loss, delay, in one place.
 *
 *     relay_tap [--try] COUNTERS {PORT DIRECTION} {PORT DIRECTION} ...
 *
 * PORT is NAME,MAC,NAMESPACE: a TAP device to be made in the network namespace of that path. Ports 2i and 2i + 1 are the
 * ends of link i. DIRECTION is INDEX:NAME=VALUE,... with each name of `names` once, for what leaves the port before it.
 * The devices live as long as this process: whatever ends it takes the links away, and nothing passes undelayed.
 *
 * "ready" on standard output says that all devices are there. A line on standard input with the syntax of DIRECTION
 * replaces that direction's parameters and drops nothing: what is queued leaves at the new rate, what is under way keeps
 * its time, draws go on where they were. The line "restart" makes the draws of every direction begin anew from its seed.
 * The answer is "changed INDEX" or "changed restart", or "refused TEXT" when it cannot be understood. Other errors end
 * the process with status 1. --try ends it with status 0 once it is ready. COUNTERS is a file mapped into memory that
 * anybody may read at any time: struct counters for each direction, the parameters in force included.
 *
 * A packet waits in the byte queue (dropped when it would not fit, marked when more than mark_bytes wait), occupies the
 * line for its bytes at the rate, is lost or not, travels for the delay. All times follow from the packet's arrival, not
 * from when this process runs. Bytes are Ethernet frames as they would be on a wire: a super-frame counts the headers of
 * each of its segments. It is cut into pieces that occupy the line for at most PIECE_NS, because a wire delivers the
 * first segment long before the last; and into single segments where chance decides about packets.
 *
 * Formats: Documentation/networking/tuntap.rst, linux/if_tun.h, linux/virtio_net.h, RFC 791, 1624, 3168, 9293.
 */
#define _GNU_SOURCE
#define PROGRAM "relay_tap"
#include "link_program.h"

#include <arpa/inet.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#ifndef TUN_F_USO4 /* Linux 6.2 */
#define TUN_F_USO4 0x20
#define TUN_F_USO6 0x40
#define VIRTIO_NET_HDR_GSO_UDP_L4 5
#endif

enum {
    BATCH = 64,
    ETHERNET_BYTES = 14,
    FRAME_BYTES = sizeof(struct virtio_net_hdr) + 65536 + ETHERNET_BYTES,
    DEVICE_QUEUE_PACKETS = 10000, /* between the kernel and this process; what overruns it the device counts */
    NUM_SIZES = 3,
};
static const uint64_t PIECE_NS = 1000000, STALE_NS = 1000000, SPIN_NS = 5000, PASS_NS = 1000000, MAX_WAIT_NS = 10000000;
static const size_t sizes[NUM_SIZES] = {2048, 16384, FRAME_BYTES};

struct parameters {
    double rate_bps, queue_bytes, mark_bytes; /* mark_bytes 0: never */
    double delay_ns, jitter_ns, uniform;
    struct losses losses;
    double duplicate, reorder, seed;
};
static const struct parameter names[] = {
    {"rate_bps", 1, 1e12},   {"queue_bytes", 1, 1e12}, {"mark_bytes", 0, 1e12}, {"delay_ns", 0, 1e11},
    {"jitter_ns", 0, 1e11},  {"uniform", 0, 1},        {"loss_good", 0, 1},     {"loss_bad", 0, 1},
    {"good_to_bad", 0, 1},   {"bad_to_good", 0, 1},    {"duplicate", 0, 1},     {"reorder", 0, 1},
    {"seed", 0, 9007199254740992.0},
};
enum { NUM_PARAMETERS = sizeof names / sizeof *names };
_Static_assert(sizeof(struct parameters) == NUM_PARAMETERS * sizeof(double), "each parameter has a name");

struct counters {
    uint64_t packets, bytes; /* that occupied the line */
    uint64_t dropped_packets, dropped_bytes, marked, lost, duplicated, reordered;
    uint64_t failed; /* the receiving device did not take them: always an error */
    uint64_t backlog_bytes;
    uint64_t overdue_ns; /* of the whole thread, counted where something was due first */
    uint64_t late[NUM_BUCKETS]; /* by bucket_of(): 1 us wide up to 64 us, then 32 in each power of two */
    struct parameters parameters;
};
struct packet {
    struct packet *next;
    uint64_t arrived_ns;
    uint64_t unread_ns; /* it may have lain in the device for so long before, while nobody looked */
    uint32_t bytes, wire_bytes, size, num_segments;
    unsigned char data[]; /* struct virtio_net_hdr, Ethernet frame */
};
enum { LOSS, JITTER, DUPLICATE, REORDER, NUM_DRAWS };
struct direction {
    int from, to; /* devices */
    struct parameters parameters;
    struct counters *counters;
    struct packet *first, **last; /* the byte queue */
    uint64_t free_ns;             /* when the line is */
    uint64_t random[NUM_DRAWS];
    int bad;
    struct heap travelling;
    uint64_t number, last_due_ns;
};
struct relay { /* a thread and its links */
    pthread_t thread;
    pthread_mutex_t lock; /* held while packets are handled, not while waiting */
    int changed;          /* eventfd: parameters were replaced */
    int first, step;      /* links */
    uint64_t pass_ns;     /* when the present pass began */
    /* By how much, at least, that was later than planned: this thread did not get to run. */
    uint64_t scheduling_delay_ns;
    uint64_t overdue_until_ns; /* it is counted */
    struct packet *unused[NUM_SIZES], *spare;
};

static struct direction *directions;
static int num_directions;

/* --- packets ---------------------------------------------------------------------------------------------------- */

static struct packet *take(struct relay *relay, size_t bytes) {
    int i = 0;
    while (sizes[i] < bytes) i++;
    struct packet *packet = relay->unused[i];
    if (packet) {
        relay->unused[i] = packet->next;
    } else {
        packet = malloc(sizeof *packet + sizes[i]);
        if (!packet) die("no memory for a packet");
        packet->size = i;
    }
    packet->bytes = bytes;
    return packet;
}

static void give(struct relay *relay, struct packet *packet) {
    packet->next = relay->unused[packet->size];
    relay->unused[packet->size] = packet;
}

static uint16_t get16(const unsigned char *at) { return at[0] << 8 | at[1]; }
static void put16(unsigned char *at, uint16_t value) {
    at[0] = value >> 8;
    at[1] = value;
}

/* One's complement: a checksum in which a word changes (RFC 1624, equation 3). */
static uint16_t changed_sum(uint16_t sum, uint16_t before, uint16_t after) {
    uint32_t total = (uint16_t)~sum + (uint16_t)~before + after;
    total = (total & 0xffff) + (total >> 16);
    return ~(total + (total >> 16));
}

static void put16_in_ip(unsigned char *ip, int at, uint16_t value) {
    put16(ip + 10, changed_sum(get16(ip + 10), get16(ip + at), value));
    put16(ip + at, value);
}

/* Sets "congestion experienced" on a packet that can bear it (RFC 3168, section 5). Returns whether it is set now. */
static int mark(struct packet *packet) {
    unsigned char *frame = packet->data + sizeof(struct virtio_net_hdr), *ip = frame + ETHERNET_BYTES;
    if (packet->bytes < sizeof(struct virtio_net_hdr) + ETHERNET_BYTES + 20 || get16(frame + 12) != 0x0800) return 0;
    if ((ip[1] & 3) == 0) return 0;
    put16_in_ip(ip, 0, get16(ip) | 3);
    return 1;
}

/* The bytes of the headers that a super-frame's segments share, 0 if it is none. */
static uint32_t header_bytes(const struct packet *packet) {
    const struct virtio_net_hdr *hdr = (const void *)packet->data;
    int type = hdr->gso_type & ~VIRTIO_NET_HDR_GSO_ECN;
    if (type == VIRTIO_NET_HDR_GSO_NONE || !hdr->gso_size) return 0;
    uint32_t frame_bytes = packet->bytes - sizeof *hdr, transport = hdr->csum_start;
    if (transport + 20 > frame_bytes) return 0;
    uint32_t bytes = transport + 8;
    if (type != VIRTIO_NET_HDR_GSO_UDP_L4) bytes = transport + (packet->data[sizeof *hdr + transport + 12] >> 4) * 4;
    return bytes < frame_bytes ? bytes : 0;
}

/* Segments from .. from + count of a super-frame, as the kernel would cut them (net/ipv4/tcp_offload.c). */
static struct packet *piece_of(struct relay *relay, const struct packet *whole, uint32_t headers, uint32_t from,
                               uint32_t count) {
    const struct virtio_net_hdr *whole_hdr = (const void *)whole->data;
    uint32_t segment = whole_hdr->gso_size, transport = whole_hdr->csum_start;
    uint32_t payload = whole->bytes - sizeof *whole_hdr - headers, begin = from * segment;
    int is_last = from + count >= whole->num_segments;
    uint32_t bytes = is_last ? payload - begin : count * segment;
    struct packet *piece = take(relay, sizeof *whole_hdr + headers + bytes);
    memcpy(piece->data, whole->data, sizeof *whole_hdr + headers);
    memcpy(piece->data + sizeof *whole_hdr + headers, whole->data + sizeof *whole_hdr + headers + begin, bytes);
    piece->num_segments = is_last ? whole->num_segments - from : count;
    piece->arrived_ns = whole->arrived_ns;
    piece->unread_ns = whole->unread_ns;

    struct virtio_net_hdr *hdr = (void *)piece->data;
    unsigned char *frame = piece->data + sizeof *hdr, *ip = frame + ETHERNET_BYTES, *header = frame + transport;
    int is_tcp = (hdr->gso_type & ~VIRTIO_NET_HDR_GSO_ECN) != VIRTIO_NET_HDR_GSO_UDP_L4;
    hdr->hdr_len = headers;
    if (from) hdr->gso_type &= ~VIRTIO_NET_HDR_GSO_ECN;
    if (piece->num_segments == 1) hdr->gso_type = VIRTIO_NET_HDR_GSO_NONE, hdr->gso_size = 0;
    if (ip[0] >> 4 == 4) {
        put16_in_ip(ip, 2, headers - ETHERNET_BYTES + bytes);
        put16_in_ip(ip, 4, get16(ip + 4) + from);
    } else {
        put16(ip + 4, headers - ETHERNET_BYTES - 40 + bytes);
    }
    /* The checksum field holds the sum of the pseudo-header, not complemented; the length is part of it. */
    unsigned char *sum = header + hdr->csum_offset;
    uint16_t length = headers - transport + bytes, whole_length = headers - transport + payload;
    put16(sum, ~changed_sum(~get16(sum), whole_length, length));
    if (is_tcp) {
        uint32_t sequence;
        memcpy(&sequence, header + 4, 4);
        sequence = htonl(ntohl(sequence) + begin);
        memcpy(header + 4, &sequence, 4);
        if (from) header[13] &= ~0x80;     /* CWR */
        if (!is_last) header[13] &= ~0x09; /* PSH, FIN */
    } else {
        put16(header + 4, length);
    }
    return piece;
}

/* --- the line --------------------------------------------------------------------------------------------------- */

static void send_off(struct direction *d, struct packet *packet, uint64_t end_ns) {
    const struct parameters *p = &d->parameters;
    uint64_t due_ns = end_ns + jittered_ns(p->delay_ns, p->jitter_ns, p->uniform, &d->random[JITTER]);
    if (p->jitter_ns == 0 && due_ns < d->last_due_ns) due_ns = d->last_due_ns; /* the delay has become shorter */
    d->last_due_ns = due_ns;
    push(&d->travelling, (struct waiting){.due_ns = due_ns, .number = d->number++, .packet = packet});
}

static uint64_t line_ns(const struct direction *d, uint32_t wire_bytes) {
    return wire_bytes * 8e9 / d->parameters.rate_bps + 0.5;
}

static int cuts_to_segments(const struct parameters *p) {
    return p->jitter_ns > 0 || p->losses.good > 0 || p->losses.good_to_bad > 0 || p->duplicate > 0 || p->reorder > 0;
}

static void leave_line(struct relay *relay, struct direction *d, struct packet *packet, uint64_t end_ns) {
    const struct parameters *p = &d->parameters;
    d->counters->packets += packet->num_segments;
    d->counters->bytes += packet->wire_bytes;
    /* Draws only where configured: then a packet's fate depends on the seed and its place in the order, nothing else. */
    if (is_lost(&p->losses, &d->bad, &d->random[LOSS])) {
        d->counters->lost += packet->num_segments;
        give(relay, packet);
        return;
    }
    if (p->duplicate > 0 && next_random(&d->random[DUPLICATE]) < p->duplicate) {
        struct packet *copy = take(relay, packet->bytes);
        memcpy(copy->data, packet->data, packet->bytes);
        copy->num_segments = packet->num_segments;
        copy->unread_ns = packet->unread_ns;
        d->counters->duplicated += packet->num_segments;
        send_off(d, copy, end_ns);
    }
    if (p->reorder > 0 && next_random(&d->random[REORDER]) < p->reorder) {
        d->counters->reordered += packet->num_segments;
        push(&d->travelling, (struct waiting){.due_ns = end_ns, .number = d->number++, .packet = packet});
    } else {
        send_off(d, packet, end_ns);
    }
}

/* Lets all that the line has begun to carry until now leave the queue. Exact however late it is called. */
static void serve(struct relay *relay, struct direction *d, uint64_t now) {
    while (d->first) {
        struct packet *packet = d->first;
        uint64_t begin_ns = packet->arrived_ns > d->free_ns ? packet->arrived_ns : d->free_ns;
        if (begin_ns > now) break;
        d->first = packet->next;
        if (!d->first) d->last = &d->first;
        d->counters->backlog_bytes -= packet->wire_bytes;
        d->free_ns = begin_ns + line_ns(d, packet->wire_bytes);
        leave_line(relay, d, packet, d->free_ns);
    }
}

static void enqueue(struct relay *relay, struct direction *d, struct packet *packet, uint64_t now) {
    struct counters *counters = d->counters;
    if (counters->backlog_bytes + packet->wire_bytes > d->parameters.queue_bytes) {
        counters->dropped_packets += packet->num_segments;
        counters->dropped_bytes += packet->wire_bytes;
        give(relay, packet);
        return;
    }
    if (d->parameters.mark_bytes > 0 && counters->backlog_bytes > d->parameters.mark_bytes && mark(packet))
        counters->marked += packet->num_segments;
    packet->next = NULL;
    *d->last = packet;
    d->last = &packet->next;
    counters->backlog_bytes += packet->wire_bytes;
    serve(relay, d, now);
}

/* Takes what the sender's device has, at most one batch. Returns whether there may be more. */
static int receive(struct relay *relay, struct direction *d) {
    for (int i = 0; i < BATCH; i++) {
        if (!relay->spare) relay->spare = take(relay, FRAME_BYTES);
        struct packet *whole = relay->spare;
        ssize_t bytes = read(d->from, whole->data, FRAME_BYTES);
        if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
        if (bytes < (ssize_t)(sizeof(struct virtio_net_hdr) + ETHERNET_BYTES)) die("cannot read a device");
        uint64_t now = now_ns(CLOCK_MONOTONIC);
        serve(relay, d, now);
        whole->arrived_ns = now;
        whole->unread_ns = relay->scheduling_delay_ns + (now - relay->pass_ns > PASS_NS ? now - relay->pass_ns : 0);
        whole->bytes = bytes;
        uint32_t headers = header_bytes(whole), frame_bytes = bytes - sizeof(struct virtio_net_hdr);
        uint32_t segment = ((struct virtio_net_hdr *)whole->data)->gso_size, at_once = UINT32_MAX;
        whole->num_segments = headers ? (frame_bytes - headers + segment - 1) / segment : 1;
        if (whole->num_segments > 1) {
            at_once = PIECE_NS / (line_ns(d, headers + segment) + 1);
            if (!at_once || cuts_to_segments(&d->parameters)) at_once = 1;
        }
        for (uint32_t from = 0; from < whole->num_segments; from += at_once) {
            struct packet *piece = whole;
            if (at_once < whole->num_segments) {
                piece = piece_of(relay, whole, headers, from, at_once);
            } else if (bytes <= (ssize_t)sizes[NUM_SIZES - 2]) {
                piece = take(relay, bytes); /* a buffer for the largest frame is too much for it */
                memcpy(piece->data, whole->data, bytes);
                piece->num_segments = whole->num_segments;
                piece->arrived_ns = now;
                piece->unread_ns = whole->unread_ns;
            } else {
                relay->spare = NULL;
            }
            piece->wire_bytes = piece->bytes - sizeof(struct virtio_net_hdr) + (piece->num_segments - 1) * headers;
            enqueue(relay, d, piece, now);
            if (at_once >= whole->num_segments) break;
        }
    }
    return 1;
}

/* Delivers what is due, at most one batch. Returns the moment when this direction next needs attention, or UINT64_MAX. */
static uint64_t release(struct relay *relay, struct direction *d) {
    uint64_t now = now_ns(CLOCK_MONOTONIC), next_ns = UINT64_MAX;
    serve(relay, d, now);
    for (int i = 0; i < BATCH && d->travelling.count && d->travelling.items[0].due_ns <= now; i++) {
        struct waiting arrived = pop(&d->travelling);
        struct packet *packet = arrived.packet;
        uint64_t late_ns = now - arrived.due_ns + packet->unread_ns;
        d->counters->late[bucket_of(late_ns)]++;
        if (write(d->to, packet->data, packet->bytes) != (ssize_t)packet->bytes)
            d->counters->failed += packet->num_segments;
        give(relay, packet);
        now = now_ns(CLOCK_MONOTONIC);
    }
    if (d->travelling.count) next_ns = d->travelling.items[0].due_ns;
    if (d->first) {
        /* When the next packet could be due; but its leaving the queue shows in the counters soon after it happens. */
        const struct parameters *p = &d->parameters;
        uint64_t after_ns = line_ns(d, d->first->wire_bytes);
        if (p->jitter_ns == 0 && p->reorder == 0) after_ns += p->delay_ns;
        if (after_ns > STALE_NS) after_ns = STALE_NS;
        if (d->free_ns + after_ns < next_ns) next_ns = d->free_ns + after_ns;
    }
    return next_ns;
}

static void count_overdue(struct relay *relay, struct direction **mine, int count) {
    struct direction *first = NULL;
    uint64_t now = now_ns(CLOCK_MONOTONIC), first_ns = UINT64_MAX;
    for (int i = 0; i < count; i++) {
        if (!mine[i]->travelling.count) continue;
        const struct waiting *next = &mine[i]->travelling.items[0];
        if (next->due_ns > now) continue;
        uint64_t due_ns = next->due_ns - ((struct packet *)next->packet)->unread_ns;
        if (due_ns >= first_ns || now - due_ns <= tolerated_ns(mine[i]->parameters.delay_ns)) continue;
        first = mine[i];
        first_ns = due_ns;
    }
    if (first) first->counters->overdue_ns += newly_overdue_ns(&relay->overdue_until_ns, first_ns, now);
}

static void *run(void *argument) {
    struct relay *relay = argument;
    struct pollfd polled[num_directions + 1];
    struct direction *mine[num_directions];
    int count = 0;
    for (int link = relay->first; 2 * link < num_directions; link += relay->step)
        for (int end = 0; end < 2; end++) {
            mine[count] = &directions[2 * link + end];
            polled[count] = (struct pollfd){.fd = mine[count]->from, .events = POLLIN};
            count++;
        }
    polled[count] = (struct pollfd){.fd = relay->changed, .events = POLLIN};
    relay->pass_ns = now_ns(CLOCK_MONOTONIC);
    uint64_t wait_ns = 0;
    for (;;) {
        uint64_t next_ns = UINT64_MAX, ignored, before_ns = relay->pass_ns;
        relay->pass_ns = now_ns(CLOCK_MONOTONIC);
        uint64_t after_ns = relay->pass_ns - before_ns;
        relay->scheduling_delay_ns = after_ns > wait_ns + PASS_NS ? after_ns - wait_ns : 0;
        if (relay->scheduling_delay_ns) {
            /* The stop may have come after the wait was over: what arrived meanwhile belongs to this pass, which knows
             * how long it has lain, not to the next one. */
            static const struct timespec at_once;
            if (ppoll(polled, count + 1, &at_once, NULL) < 0 && errno != EINTR) die("cannot wait");
        }
        pthread_mutex_lock(&relay->lock);
        if (polled[count].revents && read(relay->changed, &ignored, sizeof ignored) < 0) die("eventfd");
        for (int i = 0; i < count; i++) {
            if (polled[i].revents & (POLLERR | POLLHUP | POLLNVAL)) {
                errno = ENODEV;
                die("a device has gone");
            }
            if (polled[i].revents && receive(relay, mine[i])) next_ns = 0;
        }
        count_overdue(relay, mine, count);
        for (int i = 0; i < count; i++) {
            uint64_t moment_ns = release(relay, mine[i]);
            if (moment_ns < next_ns) next_ns = moment_ns;
        }
        pthread_mutex_unlock(&relay->lock);
        uint64_t now = now_ns(CLOCK_MONOTONIC);
        wait_ns = next_ns > now ? next_ns - now : 0;
        if (wait_ns && wait_ns < SPIN_NS) continue;
        if (wait_ns > MAX_WAIT_NS) wait_ns = MAX_WAIT_NS; /* so that a stop shows, however little there is to do */
        struct timespec wait = {.tv_nsec = wait_ns};
        if (ppoll(polled, count + 1, &wait, NULL) < 0) {
            if (errno != EINTR) die("cannot wait");
            for (int i = 0; i <= count; i++) polled[i].revents = 0;
        }
    }
    return NULL;
}

/* --- start and changes ------------------------------------------------------------------------------------------ */

/* Returns the index, or -1 with what is wrong in `problem`. `text` is consumed. */
static int parse(char *text, struct parameters *parameters, const char **problem) {
    long index = parse_parameters(text, names, NUM_PARAMETERS, (double *)parameters, problem);
    if (index < num_directions) return index;
    *problem = "there is no direction of that index";
    return -1;
}

static void adopt(struct direction *d, const struct parameters *parameters) {
    if (d->parameters.seed != parameters->seed || !d->random[0])
        start_draws(d->random, NUM_DRAWS, parameters->seed);
    if (parameters->losses.good_to_bad == 0) d->bad = 0;
    d->parameters = d->counters->parameters = *parameters;
}

static int make_device(char *text) {
    char *name = strsep(&text, ","), *mac = strsep(&text, ","), *namespace = text;
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
    unsigned char *address = (unsigned char *)request.ifr_hwaddr.sa_data;
    if (!mac || !namespace || !*name || strlen(name) >= IFNAMSIZ) {
        errno = EINVAL;
        die("a port is not NAME,MAC,NAMESPACE");
    }
    int file = open(namespace, O_RDONLY | O_CLOEXEC);
    if (file < 0 || setns(file, CLONE_NEWNET) < 0) die(namespace);
    close(file);
    int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (device < 0) die("/dev/net/tun");
    strcpy(request.ifr_name, name);
    if (ioctl(device, TUNSETIFF, &request) < 0) die("TUNSETIFF with IFF_VNET_HDR");
    unsigned offload = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
    if (ioctl(device, TUNSETOFFLOAD, offload | TUN_F_USO4 | TUN_F_USO6) < 0 && ioctl(device, TUNSETOFFLOAD, offload) < 0)
        die("TUNSETOFFLOAD");
    int any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    memset(&request.ifr_ifru, 0, sizeof request.ifr_ifru);
    request.ifr_hwaddr.sa_family = ARPHRD_ETHER;
    if (sscanf(mac, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", &address[0], &address[1], &address[2], &address[3], &address[4],
               &address[5]) != 6)
        errno = EINVAL, die(mac);
    if (any < 0 || ioctl(any, SIOCSIFHWADDR, &request) < 0) die("SIOCSIFHWADDR");
    request.ifr_qlen = DEVICE_QUEUE_PACKETS;
    if (ioctl(any, SIOCSIFTXQLEN, &request) < 0) die("SIOCSIFTXQLEN");
    close(any);
    return device;
}

/* Every direction draws anew from its seed. */
static void restart(struct relay *relays, int num_relays) {
    for (int index = 0; index < num_directions; index++) {
        struct direction *d = &directions[index];
        struct relay *relay = &relays[index / 2 % num_relays];
        pthread_mutex_lock(&relay->lock);
        serve(relay, d, now_ns(CLOCK_MONOTONIC));
        start_draws(d->random, NUM_DRAWS, d->parameters.seed);
        d->bad = 0;
        pthread_mutex_unlock(&relay->lock);
    }
    printf("changed restart\n");
}

/* Until the end of standard input, then for ever: who started this process ends it. */
static void take_changes(struct relay *relays, int num_relays) {
    char *line = NULL;
    size_t room = 0;
    struct parameters parameters;
    const char *problem;
    while (getline(&line, &room, stdin) > 0) {
        line[strcspn(line, "\n")] = 0;
        int restarts = !strcmp(line, "restart"), index = restarts ? -1 : parse(line, &parameters, &problem);
        if (restarts) {
            restart(relays, num_relays);
        } else if (index < 0) {
            printf("refused %s\n", problem);
        } else {
            struct relay *relay = &relays[index / 2 % num_relays];
            uint64_t one = 1;
            pthread_mutex_lock(&relay->lock);
            serve(relay, &directions[index], now_ns(CLOCK_MONOTONIC));
            adopt(&directions[index], &parameters);
            pthread_mutex_unlock(&relay->lock);
            if (write(relay->changed, &one, sizeof one) < 0) die("eventfd");
            printf("changed %d\n", index);
        }
        fflush(stdout);
    }
    for (;;) pause();
}

int main(int argc, char **argv) {
    int try = argc > 1 && !strcmp(argv[1], "--try");
    argv += try;
    argc -= try;
    if (argc < 6 || argc % 4 != 2) {
        fprintf(stderr, "usage: relay_tap [--try] COUNTERS {PORT DIRECTION PORT DIRECTION} ...\n");
        return 2;
    }
    num_directions = (argc - 2) / 2;
    directions = calloc(num_directions, sizeof *directions);
    if (!directions) die("no memory");
    struct counters *counters = map_counters(argv[1], num_directions * sizeof *counters);
    for (int i = 0; i < num_directions; i++) {
        struct direction *d = &directions[i];
        struct parameters parameters;
        const char *problem;
        d->counters = &counters[i];
        d->last = &d->first;
        if (parse(argv[2 * i + 3], &parameters, &problem) != i) {
            fprintf(stderr, "relay_tap: direction %d: %s\n", i, problem);
            return 2;
        }
        adopt(d, &parameters);
        d->from = make_device(argv[2 * i + 2]);
        directions[i ^ 1].to = d->from;
    }
    const char *policy = be_prompt(10) ? "SCHED_FIFO" : "SCHED_OTHER";
    long num_cores = sysconf(_SC_NPROCESSORS_ONLN);
    int num_links = num_directions / 2, num_relays = num_cores < num_links ? num_cores : num_links;
    struct relay *relays = calloc(num_relays, sizeof *relays);
    if (!relays) die("no memory");
    for (int i = 0; i < num_relays && !try; i++) {
        struct relay *relay = &relays[i];
        *relay = (struct relay){.changed = eventfd(0, EFD_CLOEXEC), .first = i, .step = num_relays};
        if (relay->changed < 0) die("eventfd");
        errno = pthread_mutex_init(&relay->lock, NULL);
        if (!errno) errno = pthread_create(&relay->thread, NULL, run, relay);
        if (errno) die("cannot start a thread");
    }
    printf("ready %s\n", policy);
    fflush(stdout);
    if (!try) take_changes(relays, num_relays);
    return 0;
}
