/*
 * Holds every packet that arrives at a port for its delay, or drops it: a delay line for kernels without netem.
 *
 *     delay_nfqueue [--try] COUNTERS LINE ...
 *
 * LINE is QUEUE:NAME=VALUE,... with each name of `names` once. One process serves all ports of one network namespace,
 * one netfilter queue per port. The kernel keeps the packets and sends only their number and arrival time; a verdict
 * lets them go on. Packets that are all delayed alike keep their order, so one batch verdict releases everything that is
 * due; those with jitter wait in a heap and are let go one by one. Lost packets get a drop verdict on arrival, those that
 * overtake (reorder) an accept verdict.
 *
 * It sleeps until something is due and reads only then what has come meanwhile: the kernel has stamped it, and waking for
 * each arrival costs more than all else that is done to a packet. Of packets that follow each other closely those within
 * a fiftieth of the delay, at most 0.1 ms, go together, so half of that is what they are early or late by; one that is
 * alone goes when it is due. If this process ends, the kernel drops what it holds and all that follows: there is no way
 * past the delay.
 *
 * "ready" on standard output says that every queue is bound. A line on standard input with the syntax of LINE replaces
 * that queue's parameters and drops nothing: what is held keeps its time, and what is delayed alike keeps its order even
 * where the delay becomes shorter; a queue never becomes shorter. Its draws go on where they were; the line "restart"
 * makes the draws of every queue begin anew from its seed. The answer is "changed QUEUE" or "changed restart", or
 * "refused TEXT" when it cannot be understood. Other errors end the process with status 1. --try ends it with status 0
 * once it is ready. COUNTERS is a file mapped into memory that anybody may read at any time: struct counters for each
 * queue, in the order of the arguments, the parameters in force included.
 *
 * Formats: netlink(7), linux/netfilter/nfnetlink.h, linux/netfilter/nfnetlink_queue.h.
 */
#define _GNU_SOURCE
#define PROGRAM "delay_nfqueue"
#include "link_program.h"

#include <arpa/inet.h>
#include <endian.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_queue.h>
#include <linux/netlink.h>
#include <poll.h>
#include <sys/socket.h>

enum {
    BATCH = 64,
    MESSAGE_BYTES = 512, /* a message without payload has about 100 */
    RECEIVE_BUFFER_BYTES = 64 << 20,
    LINE_BYTES = 1024,
    MAX_GRAIN_NS = 100000,
    CLOCK_STEP_NS = 1000000, /* by so much, or more, a clock is set; slewing that comes to it does no harm */
    MAX_UNREAD_NS = 1000000, /* so old, at most, is what lies unread: it is in the kernel's memory twice */
};

struct parameters {
    double max_packets, delay_ns, jitter_ns, uniform;
    struct losses losses;
    double reorder, seed;
};
static const struct parameter names[] = {
    {"max_packets", 1, 1e9},  {"delay_ns", 0, 1e11}, {"jitter_ns", 0, 1e11},  {"uniform", 0, 1}, {"loss_good", 0, 1},
    {"loss_bad", 0, 1},       {"good_to_bad", 0, 1}, {"bad_to_good", 0, 1},   {"reorder", 0, 1},
    {"seed", 0, 9007199254740992.0},
};
enum { NUM_PARAMETERS = sizeof names / sizeof *names };
_Static_assert(sizeof(struct parameters) == NUM_PARAMETERS * sizeof(double), "each parameter has a name");

struct counters {
    uint64_t queue, packets, lost, reordered;
    uint64_t overdue_ns; /* of the whole process, counted where something was due first */
    uint64_t late[NUM_BUCKETS]; /* by bucket_of(): 1 us wide up to 64 us, then 32 in each power of two */
    struct parameters parameters;
};
struct held {
    uint64_t due_ns;
    uint32_t id;
};
enum { LOSS, JITTER, REORDER, NUM_DRAWS };
struct line {
    uint16_t queue;
    int bad;
    struct parameters parameters;
    uint64_t random[NUM_DRAWS];
    /* In the order of arrival. Positions only grow; mask + 1 is room for all that the kernel holds. */
    uint64_t mask, head, tail, last_due_ns;
    struct held *ring;
    uint64_t released_ns; /* when the last batch went */
    struct heap heap; /* with jitter; numbers are ids */
    struct counters *counters;
};

static struct line *lines;
static int num_lines, netlink;
/* The kernel stamps arrivals with the clock of the day. What lies between it and the monotonic one, now and before it was
 * last set; when there was last nothing left to read, and whether the clock has been set since. */
static int64_t offset_ns, offset_before_ns;
static uint64_t all_read_ns;
static int set_since;

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

/* Whether packets have fates of their own: the kernel then cuts super-frames up before they are queued. */
static int cuts_to_packets(const struct parameters *p) {
    return p->losses.good > 0 || p->losses.good_to_bad > 0 || p->reorder > 0 || p->jitter_ns > 0;
}

static void put_length_and_flags(struct request *request, const struct line *line) {
    uint32_t max_packets = htonl(line->parameters.max_packets), mask = htonl(NFQA_CFG_F_GSO);
    uint32_t flags = cuts_to_packets(&line->parameters) ? 0 : mask;
    begin(request, NFQNL_MSG_CONFIG, 0, line->queue);
    put(request, NFQA_CFG_QUEUE_MAXLEN, &max_packets, sizeof max_packets);
    put(request, NFQA_CFG_FLAGS, &flags, sizeof flags);
    put(request, NFQA_CFG_MASK, &mask, sizeof mask);
}

static void bind_queue(const struct line *line) {
    struct request request;
    struct nfqnl_msg_config_cmd command = {.command = NFQNL_CFG_CMD_BIND, .pf = htons(AF_INET)};
    struct nfqnl_msg_config_params copy = {.copy_mode = NFQNL_COPY_META};

    begin(&request, NFQNL_MSG_CONFIG, 0, line->queue);
    put(&request, NFQA_CFG_CMD, &command, sizeof command);
    configure(&request, "cannot bind a queue (it needs root and a kernel with NETFILTER_NETLINK_QUEUE)");
    put_length_and_flags(&request, line);
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

static void hold(struct line *line, uint32_t id, uint64_t arrived_ns) {
    const struct parameters *p = &line->parameters;
    line->counters->packets++;
    if (is_lost(&p->losses, &line->bad, &line->random[LOSS])) {
        line->counters->lost++;
        verdict(line, NFQNL_MSG_VERDICT, id, NF_DROP);
    } else if (p->reorder > 0 && next_random(&line->random[REORDER]) < p->reorder) {
        line->counters->reordered++;
        verdict(line, NFQNL_MSG_VERDICT, id, NF_ACCEPT);
    } else if (p->jitter_ns > 0) {
        uint64_t delay_ns = jittered_ns(p->delay_ns, p->jitter_ns, p->uniform, &line->random[JITTER]);
        push(&line->heap, (struct waiting){.due_ns = arrived_ns + delay_ns, .number = id});
    } else {
        if (line->tail - line->head > line->mask) { /* more than the kernel may hold: cannot happen */
            errno = ENOBUFS;
            die("a queue is longer than its limit");
        }
        uint64_t due_ns = arrived_ns + (uint64_t)p->delay_ns;
        if (due_ns < line->last_due_ns) due_ns = line->last_due_ns; /* the delay has become shorter */
        line->ring[line->tail++ & line->mask] = (struct held){.due_ns = line->last_due_ns = due_ns, .id = id};
    }
}

/* When a packet with that stamp arrived, on the monotonic clock. However old it is, it is believed: this process may have
 * been stopped for long. Only where the clock of the day has been set meanwhile may the stamp be of the clock before; then
 * that one is right which puts the arrival between the last time that everything had been read, and now. */
static uint64_t arrival_ns(uint64_t stamp_ns, uint64_t mono_ns) {
    uint64_t by_now_ns = stamp_ns - offset_ns, by_before_ns = stamp_ns - offset_before_ns;
    if (!set_since) return by_now_ns <= mono_ns ? by_now_ns : mono_ns;
    if (by_now_ns <= mono_ns && by_now_ns + CLOCK_STEP_NS >= all_read_ns) return by_now_ns;
    if (by_before_ns <= mono_ns && by_before_ns + CLOCK_STEP_NS >= all_read_ns) return by_before_ns;
    return all_read_ns; /* set more than once: as early as it can have been */
}

static void arrive(struct nlmsghdr *header, uint64_t mono_ns) {
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
            arrived_ns = arrival_ns(be64toh(stamp.sec) * SECOND_NS + be64toh(stamp.usec) * 1000, mono_ns);
        }
        left -= NLA_ALIGN(attribute->nla_len);
        attribute = (void *)((char *)attribute + NLA_ALIGN(attribute->nla_len));
    }
    hold(line, id, arrived_ns);
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
    uint64_t mono_ns = now_ns(CLOCK_MONOTONIC);
    int64_t difference_ns = now_ns(CLOCK_REALTIME) - mono_ns, moved_ns = difference_ns - offset_ns;
    if (moved_ns > CLOCK_STEP_NS || moved_ns < -CLOCK_STEP_NS) {
        offset_before_ns = offset_ns;
        set_since = 1;
    }
    offset_ns = difference_ns;
    for (int i = 0; i < count; i++) {
        int left = messages[i].msg_len;
        for (struct nlmsghdr *h = (void *)buffers[i]; NLMSG_OK(h, (unsigned)left); h = NLMSG_NEXT(h, left)) {
            if (h->nlmsg_type == ((NFNL_SUBSYS_QUEUE << 8) | NFQNL_MSG_PACKET)) {
                arrive(h, mono_ns);
            } else if (h->nlmsg_type == NLMSG_ERROR) {
                errno = -((struct nlmsgerr *)NLMSG_DATA(h))->error;
                /* ENOENT: the kernel has dropped the packet meanwhile, because its interface went down. */
                if (errno && errno != ENOENT) die("the kernel refused a verdict");
            }
        }
    }
    if (count < BATCH) {
        all_read_ns = mono_ns;
        set_since = 0;
    }
    return count == BATCH;
}

static void count_late(struct line *line, uint64_t late_ns) {
    line->counters->late[bucket_of(late_ns)]++;
}

static void count_overdue(void) {
    static uint64_t until_ns;
    struct line *first = NULL;
    uint64_t now = now_ns(CLOCK_MONOTONIC), first_ns = UINT64_MAX;
    for (struct line *line = lines; line < lines + num_lines; line++) {
        uint64_t due_ns = line->heap.count ? line->heap.items[0].due_ns : UINT64_MAX;
        if (line->head != line->tail && line->ring[line->head & line->mask].due_ns < due_ns)
            due_ns = line->ring[line->head & line->mask].due_ns;
        if (due_ns >= first_ns || due_ns >= now || now - due_ns <= tolerated_ns(line->parameters.delay_ns)) continue;
        first = line;
        first_ns = due_ns;
    }
    if (first) first->counters->overdue_ns += newly_overdue_ns(&until_ns, first_ns, now);
}

/* Packets that are all delayed alike are late or early by half of this, beside what waking up takes. */
static uint64_t grain(const struct line *line) {
    return line->parameters.delay_ns < 50.0 * MAX_GRAIN_NS ? line->parameters.delay_ns / 50 : MAX_GRAIN_NS;
}

static void release_waiting(struct line *line, uint64_t now) {
    while (line->heap.count && line->heap.items[0].due_ns <= now) {
        struct waiting waiting = pop(&line->heap);
        count_late(line, now - waiting.due_ns);
        verdict(line, NFQNL_MSG_VERDICT, waiting.number, NF_ACCEPT);
    }
}

static void release_held(struct line *line, uint64_t now) {
    uint64_t from = line->head;
    if (from == line->tail || line->ring[from & line->mask].due_ns > now) return;
    while (line->head != line->tail && line->ring[line->head & line->mask].due_ns <= now + grain(line) / 2) {
        const struct held *held = &line->ring[line->head++ & line->mask];
        count_late(line, held->due_ns < now ? now - held->due_ns : 0);
        /* A batch verdict is for all up to a number: also for what waits in the heap. */
        if (line->heap.count) verdict(line, NFQNL_MSG_VERDICT, held->id, NF_ACCEPT);
    }
    line->released_ns = now;
    if (!line->heap.count)
        verdict(line, NFQNL_MSG_VERDICT_BATCH, line->ring[(line->head - 1) & line->mask].id, NF_ACCEPT);
}

/* Lets go of everything that is due. Returns the moment when something is again, or UINT64_MAX. */
static uint64_t release(void) {
    uint64_t next_ns = UINT64_MAX;
    count_overdue();
    for (struct line *line = lines; line < lines + num_lines; line++) {
        uint64_t now = now_ns(CLOCK_MONOTONIC);
        release_waiting(line, now);
        if (now >= line->released_ns + grain(line)) release_held(line, now);
        if (line->heap.count && line->heap.items[0].due_ns < next_ns) next_ns = line->heap.items[0].due_ns;
        if (line->head != line->tail) {
            uint64_t due_ns = line->ring[line->head & line->mask].due_ns, again_ns = line->released_ns + grain(line);
            if (due_ns < again_ns) due_ns = again_ns;
            if (due_ns < next_ns) next_ns = due_ns;
        }
    }
    return next_ns;
}

/* How long packets may lie unread: none of them is due before. */
static uint64_t patience(void) {
    uint64_t least_ns = MAX_UNREAD_NS;
    for (const struct line *line = lines; line < lines + num_lines; line++) {
        const struct parameters *p = &line->parameters;
        if (p->jitter_ns > 0 || p->reorder > 0) return 0;
        if (p->delay_ns < least_ns) least_ns = p->delay_ns;
    }
    return least_ns;
}

/* --- start and changes ------------------------------------------------------------------------------------------ */

/* Returns the queue, or -1 with what is wrong in `problem`. `text` is consumed. */
static int parse(char *text, struct parameters *parameters, const char **problem) {
    long queue = parse_parameters(text, names, NUM_PARAMETERS, (double *)parameters, problem);
    if (queue <= 65535) return queue;
    *problem = "there is no queue of that number";
    return -1;
}

/* Room for as many packets as the queue may hold; those it holds keep their places. */
static void make_room(struct line *line) {
    uint64_t num_places = line->ring ? line->mask + 1 : 1, mask = line->mask;
    struct held *ring = line->ring;
    while (num_places < line->parameters.max_packets) num_places *= 2;
    if (ring && num_places == mask + 1) return;
    line->ring = mmap(NULL, num_places * sizeof *ring, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (line->ring == MAP_FAILED) die("no memory for a queue");
    line->mask = num_places - 1;
    for (uint64_t at = line->head; at != line->tail; at++) line->ring[at & line->mask] = ring[at & mask];
    if (ring) munmap(ring, (mask + 1) * sizeof *ring);
}

static void adopt(struct line *line, const struct parameters *parameters) {
    double max_packets = line->parameters.max_packets;
    if (!line->ring || line->parameters.seed != parameters->seed)
        start_draws(line->random, NUM_DRAWS, parameters->seed);
    if (parameters->losses.good_to_bad == 0) line->bad = 0;
    line->parameters = *parameters;
    if (line->parameters.max_packets < max_packets) line->parameters.max_packets = max_packets;
    make_room(line);
    line->counters->parameters = line->parameters;
}

/* Every line draws anew from its seed. */
static void restart(void) {
    for (struct line *line = lines; line < lines + num_lines; line++) {
        start_draws(line->random, NUM_DRAWS, line->parameters.seed);
        line->bad = 0;
    }
    printf("changed restart\n");
}

static void change(char *text) {
    struct parameters parameters;
    struct request request;
    const char *problem;
    int queue = parse(text, &parameters, &problem);
    struct line *line = lines;
    while (line < lines + num_lines && line->queue != queue) line++;
    if (queue < 0 || line == lines + num_lines) {
        printf("refused %s\n", queue < 0 ? problem : "no line has that queue");
    } else {
        adopt(line, &parameters);
        /* Not acknowledged, since packets come meanwhile; an error is noticed where they are read. */
        put_length_and_flags(&request, line);
        submit(&request, "cannot change a queue");
        printf("changed %d\n", queue);
    }
}

/* Reads what has come on standard input. Returns 0 at its end. */
static int take_changes(void) {
    static char text[LINE_BYTES];
    static size_t length;
    ssize_t count = read(STDIN_FILENO, text + length, sizeof text - length);
    if (count <= 0) return count < 0 && errno == EINTR;
    length += count;
    char *from = text, *end;
    while ((end = memchr(from, '\n', text + length - from))) {
        *end = 0;
        strcmp(from, "restart") ? change(from) : restart();
        fflush(stdout);
        from = end + 1;
    }
    length -= from - text;
    memmove(text, from, length);
    if (length == sizeof text) length = 0; /* longer than any line that means something: refused at its end */
    return 1;
}

static void serve(void) {
    struct pollfd polled[] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = netlink, .events = POLLIN}};
    for (;;) {
        uint64_t unread_ns = now_ns(CLOCK_MONOTONIC) + patience();
        int more = receive();
        uint64_t next_ns = release(), now = now_ns(CLOCK_MONOTONIC);
        int empty = next_ns == UINT64_MAX, prompt = empty || unread_ns <= now;
        if (!prompt && unread_ns < next_ns) next_ns = unread_ns;
        uint64_t wait_ns = more || next_ns <= now ? 0 : next_ns - now;
        struct timespec wait = {.tv_sec = wait_ns / SECOND_NS, .tv_nsec = wait_ns % SECOND_NS};
        polled[0].revents = 0;
        if (ppoll(polled, prompt ? 2 : 1, empty && !more ? NULL : &wait, NULL) < 0 && errno != EINTR)
            die("cannot wait");
        if (!polled[0].revents) continue;
        while (receive()) { /* what has come before the change is treated as before */
        }
        if (!take_changes()) polled[0].fd = -1; /* nobody will change anything any more */
    }
}

int main(int argc, char **argv) {
    int try = argc > 1 && !strcmp(argv[1], "--try");
    argv += try;
    argc -= try;
    if (argc < 3) {
        fprintf(stderr, "usage: delay_nfqueue [--try] COUNTERS LINE ...\n");
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

    all_read_ns = now_ns(CLOCK_MONOTONIC);
    offset_ns = offset_before_ns = now_ns(CLOCK_REALTIME) - all_read_ns;
    const char *policy = be_prompt(10) ? "SCHED_FIFO" : "SCHED_OTHER";
    struct counters *counters = map_counters(argv[1], num_lines * sizeof *counters);
    for (int i = 0; i < num_lines; i++) {
        struct parameters parameters;
        const char *problem;
        int queue = parse(argv[i + 2], &parameters, &problem);
        if (queue < 0) {
            fprintf(stderr, "delay_nfqueue: line %d: %s\n", i, problem);
            return 2;
        }
        lines[i].counters = &counters[i];
        counters[i].queue = lines[i].queue = queue;
        adopt(&lines[i], &parameters);
        bind_queue(&lines[i]);
    }
    printf("ready %s\n", policy);
    fflush(stdout);
    if (!try) serve();
    return 0;
}
