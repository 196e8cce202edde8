/*
 * Holds every packet that arrives at a port for a fixed time: a delay line for kernels without netem.
 *
 *     delay_nfqueue [--try] COUNTERS QUEUE:DELAY_NS:MAX_PACKETS:LOSS:SEED ...
 *
 * One process serves all ports of one network namespace, one netfilter queue per port. The kernel keeps the packets
 * and sends only their number and arrival time; a verdict lets them go on. A constant delay keeps the order, so one
 * batch verdict releases everything that is due. Lost packets get a drop verdict on arrival. If this process ends,
 * the kernel drops what it holds and all that follows: there is no way past the delay.
 *
 * "ready" on standard output says that every queue is bound; any error ends the process with status 1. --try ends
 * it there with status 0. COUNTERS is a file mapped into memory that anybody may read at any time: struct counters for
 * each queue, in the order of the arguments.
 *
 * Formats: netlink(7), linux/netfilter/nfnetlink.h, linux/netfilter/nfnetlink_queue.h.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_queue.h>
#include <linux/netlink.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    NUM_BUCKETS = 896,
    BATCH = 64,
    MESSAGE_BYTES = 512, /* a message without payload has about 100 */
    RECEIVE_BUFFER_BYTES = 64 << 20,
};
static const uint64_t SECOND_NS = 1000000000;

struct counters {
    uint64_t queue, packets, lost, max_late_ns;
    uint64_t late[NUM_BUCKETS]; /* by bucket_of(): 1 us wide up to 64 us, then 32 in each power of two */
};
struct held {
    uint64_t due_ns;
    uint32_t id;
};
struct line {
    uint16_t queue;
    uint64_t delay_ns, lost_below, random; /* a packet is lost if its random number is below */
    uint32_t max_packets;
    uint64_t mask, head, tail; /* positions in the ring only grow */
    struct held *ring;
    struct counters *counters;
};

static struct line *lines;
static int num_lines, netlink;

static void die(const char *what) {
    fprintf(stderr, "delay_nfqueue: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t now_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * SECOND_NS + now.tv_nsec;
}

/* splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014) */
static uint64_t next_random(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

static unsigned bucket_of(uint64_t late_ns) {
    uint64_t us = late_ns / 1000;
    if (us < 64) return us;
    if (us >> 31) return NUM_BUCKETS - 1;
    unsigned shift = 58 - __builtin_clzll(us);
    return shift * 32 + (us >> shift);
}

/* --- messages to the kernel ------------------------------------------------------------------------------------ */

struct request {
    struct nlmsghdr header;
    struct nfgenmsg family;
    char attributes[96];
};

static void begin(struct request *request, int type, int flags, uint16_t queue) {
    memset(request, 0, sizeof *request);
    request->header.nlmsg_type = (NFNL_SUBSYS_QUEUE << 8) | type;
    request->header.nlmsg_flags = NLM_F_REQUEST | flags;
    request->header.nlmsg_len = NLMSG_LENGTH(sizeof request->family);
    request->family.nfgen_family = AF_UNSPEC;
    request->family.version = NFNETLINK_V0;
    request->family.res_id = htons(queue);
}

static void put(struct request *request, int type, const void *value, size_t size) {
    struct nlattr *attribute = (void *)((char *)request + NLMSG_ALIGN(request->header.nlmsg_len));
    attribute->nla_type = type;
    attribute->nla_len = NLA_HDRLEN + size;
    memcpy((char *)attribute + NLA_HDRLEN, value, size);
    request->header.nlmsg_len = NLMSG_ALIGN(request->header.nlmsg_len) + NLA_ALIGN(attribute->nla_len);
}

static void submit(struct request *request, const char *what) {
    if (send(netlink, request, request->header.nlmsg_len, 0) < 0) die(what);
}

static void configure(struct request *request, const char *what) {
    char answer[MESSAGE_BYTES];
    request->header.nlmsg_flags |= NLM_F_ACK;
    submit(request, what);
    for (;;) { /* no packets come in between: rules are made after "ready" */
        ssize_t size = recv(netlink, answer, sizeof answer, 0);
        struct nlmsghdr *header = (void *)answer;
        if (size < (ssize_t)NLMSG_LENGTH(sizeof(struct nlmsgerr))) die(what);
        if (header->nlmsg_type != NLMSG_ERROR) continue;
        errno = -((struct nlmsgerr *)NLMSG_DATA(header))->error;
        if (errno) die(what);
        return;
    }
}

static void bind_queue(const struct line *line) {
    struct request request;
    struct nfqnl_msg_config_cmd command = {.command = NFQNL_CFG_CMD_BIND, .pf = htons(AF_INET)};
    struct nfqnl_msg_config_params copy = {.copy_mode = NFQNL_COPY_META};
    uint32_t max_packets = htonl(line->max_packets), mask = htonl(NFQA_CFG_F_GSO);
    /* Loss is of packets, not of super-frames: the kernel then cuts them up before they are queued. */
    uint32_t flags = line->lost_below ? 0 : mask;

    begin(&request, NFQNL_MSG_CONFIG, 0, line->queue);
    put(&request, NFQA_CFG_CMD, &command, sizeof command);
    configure(&request, "cannot bind a queue (it needs root and a kernel with NETFILTER_NETLINK_QUEUE)");
    begin(&request, NFQNL_MSG_CONFIG, 0, line->queue);
    put(&request, NFQA_CFG_QUEUE_MAXLEN, &max_packets, sizeof max_packets);
    put(&request, NFQA_CFG_FLAGS, &flags, sizeof flags);
    put(&request, NFQA_CFG_MASK, &mask, sizeof mask);
    configure(&request, "cannot set a queue's length and flags");
    /* Last: only now do packets come. */
    begin(&request, NFQNL_MSG_CONFIG, 0, line->queue);
    put(&request, NFQA_CFG_PARAMS, &copy, sizeof copy);
    configure(&request, "cannot set a queue's copy mode");
}

static void verdict(const struct line *line, int type, uint32_t id, uint32_t decision) {
    struct request request;
    struct nfqnl_msg_verdict_hdr header = {.verdict = htonl(decision), .id = htonl(id)};
    begin(&request, type, 0, line->queue);
    put(&request, NFQA_VERDICT_HDR, &header, sizeof header);
    submit(&request, "cannot give a verdict");
}

/* --- packets ---------------------------------------------------------------------------------------------------- */

static void arrive(struct nlmsghdr *header, uint64_t mono_ns, uint64_t real_ns) {
    struct nfgenmsg *family = NLMSG_DATA(header);
    struct line *line = NULL;
    for (int i = 0; i < num_lines && !line; i++)
        if (lines[i].queue == ntohs(family->res_id)) line = &lines[i];
    if (!line) return;
    uint32_t id = 0;
    uint64_t arrived_ns = mono_ns;
    int left = header->nlmsg_len - NLMSG_LENGTH(sizeof *family);
    struct nlattr *attribute = (void *)((char *)family + NLMSG_ALIGN(sizeof *family));
    while (left >= NLA_HDRLEN && attribute->nla_len >= NLA_HDRLEN && attribute->nla_len <= left) {
        void *value = (char *)attribute + NLA_HDRLEN;
        int type = attribute->nla_type & NLA_TYPE_MASK;
        if (type == NFQA_PACKET_HDR) {
            struct nfqnl_msg_packet_hdr packet;
            memcpy(&packet, value, sizeof packet);
            id = ntohl(packet.packet_id);
        } else if (type == NFQA_TIMESTAMP) {
            struct nfqnl_msg_packet_timestamp stamp;
            memcpy(&stamp, value, sizeof stamp);
            uint64_t age_ns = real_ns - (be64toh(stamp.sec) * SECOND_NS + be64toh(stamp.usec) * 1000);
            if (age_ns < SECOND_NS) arrived_ns = mono_ns - age_ns; /* else the clock has been set meanwhile */
        }
        left -= NLA_ALIGN(attribute->nla_len);
        attribute = (void *)((char *)attribute + NLA_ALIGN(attribute->nla_len));
    }
    line->counters->packets++;
    if (line->lost_below && next_random(&line->random) < line->lost_below) {
        line->counters->lost++;
        verdict(line, NFQNL_MSG_VERDICT, id, NF_DROP);
        return;
    }
    if (line->tail - line->head > line->mask) { /* more than the kernel may hold: cannot happen */
        errno = ENOBUFS;
        die("a queue is longer than its limit");
    }
    line->ring[line->tail++ & line->mask] = (struct held){.due_ns = arrived_ns + line->delay_ns, .id = id};
}

/* Reads what has come, at most one batch. Returns whether there may be more. */
static int receive(void) {
    static char buffers[BATCH][MESSAGE_BYTES];
    struct iovec vectors[BATCH];
    struct mmsghdr messages[BATCH];
    memset(messages, 0, sizeof messages);
    for (int i = 0; i < BATCH; i++) {
        vectors[i] = (struct iovec){.iov_base = buffers[i], .iov_len = MESSAGE_BYTES};
        messages[i].msg_hdr.msg_iov = &vectors[i];
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    int count = recvmmsg(netlink, messages, BATCH, MSG_DONTWAIT, NULL);
    if (count < 0 && errno != EAGAIN && errno != EINTR) die("cannot read packets");
    uint64_t mono_ns = now_ns(CLOCK_MONOTONIC), real_ns = now_ns(CLOCK_REALTIME);
    for (int i = 0; i < count; i++) {
        int left = messages[i].msg_len;
        for (struct nlmsghdr *h = (void *)buffers[i]; NLMSG_OK(h, (unsigned)left); h = NLMSG_NEXT(h, left)) {
            if (h->nlmsg_type == ((NFNL_SUBSYS_QUEUE << 8) | NFQNL_MSG_PACKET)) {
                arrive(h, mono_ns, real_ns);
            } else if (h->nlmsg_type == NLMSG_ERROR) {
                errno = -((struct nlmsgerr *)NLMSG_DATA(h))->error;
                /* ENOENT: the kernel has dropped the packet meanwhile, because its interface went down. */
                if (errno && errno != ENOENT) die("the kernel refused a verdict");
            }
        }
    }
    return count == BATCH;
}

/* Lets go of everything that is due. Returns the moment when the next packet is, or UINT64_MAX. */
static uint64_t release(void) {
    uint64_t next_ns = UINT64_MAX;
    for (struct line *line = lines; line < lines + num_lines; line++) {
        uint64_t now = now_ns(CLOCK_MONOTONIC), from = line->head;
        uint32_t last = 0;
        while (line->head != line->tail && line->ring[line->head & line->mask].due_ns <= now) {
            uint64_t late_ns = now - line->ring[line->head & line->mask].due_ns;
            last = line->ring[line->head++ & line->mask].id;
            line->counters->late[bucket_of(late_ns)]++;
            if (late_ns > line->counters->max_late_ns) line->counters->max_late_ns = late_ns;
        }
        if (line->head != from) verdict(line, NFQNL_MSG_VERDICT_BATCH, last, NF_ACCEPT);
        if (line->head != line->tail && line->ring[line->head & line->mask].due_ns < next_ns)
            next_ns = line->ring[line->head & line->mask].due_ns;
    }
    return next_ns;
}

static void serve(void) {
    struct pollfd readable = {.fd = netlink, .events = POLLIN};
    for (;;) {
        int more = receive();
        uint64_t next_ns = release(), now = now_ns(CLOCK_MONOTONIC);
        if (more || next_ns <= now) continue;
        uint64_t wait_ns = next_ns - now;
        struct timespec wait = {.tv_sec = wait_ns / SECOND_NS, .tv_nsec = wait_ns % SECOND_NS};
        if (ppoll(&readable, 1, next_ns == UINT64_MAX ? NULL : &wait, NULL) < 0 && errno != EINTR) die("cannot wait");
    }
}

/* --- start ------------------------------------------------------------------------------------------------------ */

static void parse(struct line *line, const char *text) {
    unsigned long long delay_ns, seed;
    unsigned queue, max_packets;
    double loss;
    int end = 0;
    int found = sscanf(text, "%u:%llu:%u:%lf:%llu%n", &queue, &delay_ns, &max_packets, &loss, &seed, &end);
    if (found != 5 || text[end] || queue > 65535 || max_packets < 1 || loss < 0 || loss >= 1) {
        errno = EINVAL;
        die(text);
    }
    *line = (struct line){.queue = queue, .delay_ns = delay_ns, .max_packets = max_packets, .random = seed};
    line->lost_below = loss * 18446744073709551616.0; /* 2 to the 64 */
    for (line->mask = 1; line->mask < max_packets; line->mask *= 2) {}
    line->ring = mmap(NULL, line->mask-- * sizeof *line->ring, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (line->ring == MAP_FAILED) die("no memory for a queue");
}

static struct counters *map_counters(const char *path) {
    size_t size = num_lines * sizeof(struct counters);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0640);
    if (file < 0 || ftruncate(file, size) < 0) die(path);
    void *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) die(path);
    close(file);
    return mapped;
}

int main(int argc, char **argv) {
    int try = argc > 1 && !strcmp(argv[1], "--try");
    argv += try;
    argc -= try;
    if (argc < 3) {
        fprintf(stderr, "usage: delay_nfqueue [--try] COUNTERS QUEUE:DELAY_NS:MAX_PACKETS:LOSS:SEED ...\n");
        return 2;
    }
    num_lines = argc - 2;
    lines = calloc(num_lines, sizeof *lines);
    if (!lines) die("no memory");
    netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER);
    struct sockaddr_nl address = {.nl_family = AF_NETLINK};
    if (netlink < 0 || bind(netlink, (void *)&address, sizeof address) < 0) die("no netfilter in this kernel");
    int one = 1, size = RECEIVE_BUFFER_BYTES;
    if (setsockopt(netlink, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size) < 0 &&
        setsockopt(netlink, SOL_SOCKET, SO_RCVBUF, &size, sizeof size) < 0)
        die("SO_RCVBUF");
    /* Packets that overrun the buffer are dropped and counted by the kernel; reading goes on. */
    setsockopt(netlink, SOL_NETLINK, NETLINK_NO_ENOBUFS, &one, sizeof one);
    /* One socket that wants time stamps makes the kernel stamp every packet on arrival: the delay counts from there,
     * not from when this process came to read of it. */
    int stamping = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    setsockopt(stamping, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);

    struct sched_param priority = {.sched_priority = 10};
    int fifo = sched_setscheduler(0, SCHED_FIFO, &priority) == 0;
    prctl(PR_SET_TIMERSLACK, 1UL);

    for (int i = 0; i < num_lines; i++) parse(&lines[i], argv[i + 2]);
    struct counters *counters = map_counters(argv[1]);
    for (int i = 0; i < num_lines; i++) {
        lines[i].counters = &counters[i];
        counters[i].queue = lines[i].queue;
        bind_queue(&lines[i]);
    }
    printf("ready %s\n", fifo ? "SCHED_FIFO" : "SCHED_OTHER");
    fflush(stdout);
    if (!try) serve();
    return 0;
}
