/*
 * Background traffic between two hosts: one flow for each pair of processes, a source and a sink.
 *
 *     traffic COUNTERS sink udp|tcp ADDRESS PORT
 *     traffic COUNTERS udp SOURCE TARGET PORT START_NS STOP_NS RATE_BPS PACKET_BYTES ON_NS OFF_NS EXPONENTIAL SEED
 *     traffic COUNTERS tcp SOURCE TARGET PORT START_NS STOP_NS STREAMS
 *
 * udp sends IP packets of PACKET_BYTES at RATE_BPS, counted with their Ethernet header. Every packet has its moment, and
 * one that is MAX_LATE_NS late is counted and left out: a burst later on would be other traffic. So is one that the
 * socket does not take, because the host's own link is full. With OFF_NS it sends for ON_NS and is silent for OFF_NS, by
 * turns, or for exponentially distributed times with these means. tcp sends as much as it gets through on each stream.
 *
 * START_NS and STOP_NS count from the moment that somebody writes into COUNTERS as `origin_ns` (CLOCK_MONOTONIC). With
 * START_NS 0 sending begins at once. STOP_NS 0 is never. Connections stay open afterwards, so that the kernel's counters
 * of them can be read to the end.
 *
 * "ready" on standard output says that the sockets are there; any error ends the process with status 1. COUNTERS is a
 * file mapped into memory that anybody may read at any time. Formats: udp(7), tcp(7), sendmmsg(2).
 */
#define _GNU_SOURCE
#define PROGRAM "traffic"
#include "program.h"

#include <arpa/inet.h>
#include <math.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

enum {
    BATCH = 64,
    MAX_STREAMS = 64,
    HEADER_BYTES = 28, /* IPv4 and UDP */
    ETHERNET_BYTES = 14,
    CHUNK_BYTES = 256 << 10,
    BUFFER_BYTES = 8 << 20,
    UNSENT_BYTES = 128 << 10, /* what a stream keeps ready in the kernel beyond its window */
};
static const uint64_t TICK_NS = 250000, IDLE_NS = 5000000, MAX_LATE_NS = 100000000;

struct counters {
    uint64_t origin_ns;                 /* written by whoever watches */
    uint64_t due, sent, blocked, late;  /* packets of udp */
    uint64_t sent_bytes;                /* of the wire for udp, of payload for tcp */
    uint64_t received, received_bytes;  /* datagrams; of the wire for udp, of payload for tcp */
};
static volatile struct counters *counters;
static char chunk[CHUNK_BYTES];

static void sleep_until(uint64_t at_ns) {
    struct timespec at = {.tv_sec = at_ns / SECOND_NS, .tv_nsec = at_ns % SECOND_NS};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR) {}
}

static struct sockaddr_in address_of(const char *text, const char *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    if (inet_pton(AF_INET, text, &address.sin_addr) != 1) {
        errno = EINVAL;
        die(text);
    }
    return address;
}

/* A socket at that address and port; 0 is any. */
static int bound(int type, const char *text, const char *port) {
    struct sockaddr_in own = address_of(text, port);
    int one = 1, made = socket(AF_INET, type | SOCK_CLOEXEC, 0);
    if (made < 0 || setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) < 0) die("no socket");
    if (bind(made, (void *)&own, sizeof own) < 0) die(text);
    return made;
}

static int connected(int type, const char *source, const char *target, const char *port) {
    struct sockaddr_in there = address_of(target, port);
    int made = bound(type, source, "0");
    if (connect(made, (void *)&there, sizeof there) < 0) die(target);
    return made;
}

static void ready(void) {
    printf("ready\n");
    fflush(stdout);
}

/* --- when ------------------------------------------------------------------------------------------------------- */

static uint64_t start_ns, stop_ns;

/* The moment at which sending ends; UINT64_MAX as long as nobody knows. */
static uint64_t end_ns(void) {
    uint64_t origin_ns = counters->origin_ns;
    return stop_ns && origin_ns ? origin_ns + stop_ns : UINT64_MAX;
}

/* Returns the moment at which sending begins, when it has come. */
static uint64_t wait_for_start(void) {
    if (!start_ns) return now_ns(CLOCK_MONOTONIC);
    for (;;) {
        uint64_t now = now_ns(CLOCK_MONOTONIC), origin_ns = counters->origin_ns;
        if (origin_ns && now >= origin_ns + start_ns) return origin_ns + start_ns;
        sleep_until(now + IDLE_NS);
    }
}

/* --- udp -------------------------------------------------------------------------------------------------------- */

struct stream {
    int socket;
    double interval_ns; /* between two packets */
    size_t payload_bytes;
};

static void send_packets(const struct stream *stream, uint64_t count) {
    struct iovec vector = {.iov_base = chunk, .iov_len = stream->payload_bytes};
    struct mmsghdr messages[BATCH];
    memset(messages, 0, sizeof messages);
    for (int i = 0; i < BATCH; i++) messages[i].msg_hdr = (struct msghdr){.msg_iov = &vector, .msg_iovlen = 1};
    while (count) {
        int batch = count < BATCH ? (int)count : BATCH, sent = sendmmsg(stream->socket, messages, batch, MSG_DONTWAIT);
        if (sent < 0 && errno != EAGAIN && errno != ENOBUFS) die("cannot send");
        if (sent < 0) sent = 0;
        counters->sent += sent;
        counters->sent_bytes += sent * (stream->payload_bytes + HEADER_BYTES + ETHERNET_BYTES);
        if (sent < batch) { /* the host's link is full: what is due now is not sent */
            counters->blocked += count - sent;
            return;
        }
        count -= sent;
    }
}

/* Sends everything that is due from one moment to the other, which may come nearer meanwhile. Returns 0 at the end of
 * all sending. */
static int send_between(const struct stream *stream, uint64_t from_ns, uint64_t to_ns) {
    uint64_t done = 0, latest = MAX_LATE_NS / stream->interval_ns + 1;
    for (;;) {
        uint64_t now = now_ns(CLOCK_MONOTONIC), end = end_ns(), until = end < to_ns ? end : to_ns;
        uint64_t reached = now < until ? now : until;
        uint64_t due = reached > from_ns ? (uint64_t)((reached - from_ns) / stream->interval_ns + 0.5) : 0;
        if (due > done) {
            uint64_t count = due - done;
            counters->due += count;
            if (count > latest) {
                counters->late += count - latest;
                count = latest;
            }
            send_packets(stream, count);
            done = due;
        }
        if (now >= until) return until < end;
        uint64_t next = from_ns + (uint64_t)((done + 0.5) * stream->interval_ns), wake = now + TICK_NS;
        if (next > wake) wake = next < now + IDLE_NS ? next : now + IDLE_NS;
        sleep_until(wake < until ? wake : until);
    }
}

static void send_udp(char **arguments) {
    const char *source = arguments[0], *target = arguments[1], *port = arguments[2];
    double rate_bps = atof(arguments[5]), on_ns = atof(arguments[7]), off_ns = atof(arguments[8]);
    int packet_bytes = atoi(arguments[6]), exponential = atoi(arguments[9]), one = 1, size = BUFFER_BYTES;
    uint64_t random = strtoull(arguments[10], NULL, 10);
    struct stream stream = {.socket = connected(SOCK_DGRAM, source, target, port)};
    stream.payload_bytes = packet_bytes - HEADER_BYTES;
    stream.interval_ns = (packet_bytes + ETHERNET_BYTES) * 8e9 / rate_bps;
    /* Without it the kernel does not say that the link's queue dropped the packet at once. */
    if (setsockopt(stream.socket, IPPROTO_IP, IP_RECVERR, &one, sizeof one) < 0) die("IP_RECVERR");
    if (setsockopt(stream.socket, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof size) < 0) die("SO_SNDBUFFORCE");
    if (!be_prompt(5)) die("SCHED_FIFO");
    ready();
    uint64_t from_ns = wait_for_start();
    for (;;) {
        double on = on_ns, off = off_ns;
        if (exponential) {
            on *= -log(1 - next_random(&random));
            off *= -log(1 - next_random(&random));
        }
        uint64_t to_ns = off_ns > 0 ? from_ns + (uint64_t)on : UINT64_MAX;
        if (!send_between(&stream, from_ns, to_ns)) return;
        from_ns = to_ns + (uint64_t)off;
        for (uint64_t now = now_ns(CLOCK_MONOTONIC); now < from_ns; now = now_ns(CLOCK_MONOTONIC)) {
            if (now >= end_ns()) return;
            sleep_until(from_ns < now + IDLE_NS ? from_ns : now + IDLE_NS);
        }
    }
}

static void take_udp(int taker) {
    struct mmsghdr messages[BATCH];
    int size = BUFFER_BYTES;
    if (setsockopt(taker, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size) < 0) die("SO_RCVBUFFORCE");
    ready();
    for (;;) {
        memset(messages, 0, sizeof messages);
        /* Nothing is copied: the true length is all that counts. */
        int count = recvmmsg(taker, messages, BATCH, MSG_WAITFORONE | MSG_TRUNC, NULL);
        if (count < 0 && errno != EINTR) die("cannot receive");
        for (int i = 0; i < count; i++) {
            counters->received++;
            counters->received_bytes += messages[i].msg_len + HEADER_BYTES + ETHERNET_BYTES;
        }
        if (count > 0 && count < BATCH) sleep_until(now_ns(CLOCK_MONOTONIC) + TICK_NS); /* fewer wake-ups, more in each */
    }
}

/* --- tcp -------------------------------------------------------------------------------------------------------- */

static void send_tcp(char **arguments) {
    const char *source = arguments[0], *target = arguments[1], *port = arguments[2];
    int num_streams = atoi(arguments[5]), unsent = UNSENT_BYTES;
    struct pollfd streams[MAX_STREAMS];
    for (int i = 0; i < num_streams; i++) {
        streams[i] = (struct pollfd){.fd = connected(SOCK_STREAM, source, target, port), .events = POLLOUT};
        if (setsockopt(streams[i].fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent) < 0)
            die("TCP_NOTSENT_LOWAT");
    }
    ready();
    wait_for_start();
    while (now_ns(CLOCK_MONOTONIC) < end_ns()) {
        if (poll(streams, num_streams, 100) < 0 && errno != EINTR) die("cannot wait");
        for (int i = 0; i < num_streams; i++) {
            if (!streams[i].revents) continue;
            ssize_t sent = send(streams[i].fd, chunk, CHUNK_BYTES, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (sent < 0 && errno != EAGAIN) die("cannot send");
            if (sent > 0) counters->sent_bytes += sent;
        }
    }
}

static void take_tcp(int listener) {
    struct pollfd streams[MAX_STREAMS + 1] = {{.fd = listener, .events = POLLIN}};
    int num_streams = 1;
    if (listen(listener, MAX_STREAMS) < 0) die("cannot listen");
    ready();
    for (;;) {
        if (poll(streams, num_streams, -1) < 0 && errno != EINTR) die("cannot wait");
        for (int i = num_streams - 1; i > 0; i--) {
            if (!streams[i].revents) continue;
            ssize_t size = recv(streams[i].fd, NULL, CHUNK_BYTES, MSG_DONTWAIT | MSG_TRUNC); /* discards, see tcp(7) */
            if (size > 0) counters->received_bytes += size;
            if (size < 0 && errno != EAGAIN && errno != ECONNRESET) die("cannot receive");
            if (size == 0 || (size < 0 && errno == ECONNRESET)) {
                close(streams[i].fd);
                streams[i] = streams[--num_streams];
            }
        }
        if (streams[0].revents && num_streams <= MAX_STREAMS) {
            int taken = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
            if (taken < 0) die("cannot accept");
            streams[num_streams++] = (struct pollfd){.fd = taken, .events = POLLIN};
        }
    }
}

/* --- start ------------------------------------------------------------------------------------------------------ */

int main(int argc, char **argv) {
    const char *role = argc > 2 ? argv[2] : "";
    int udp = !strcmp(role, "udp"), tcp = !strcmp(role, "tcp"), sink = !strcmp(role, "sink");
    if (argc != (udp ? 14 : tcp ? 9 : sink ? 6 : 0)) {
        fprintf(stderr, "usage: see the head of traffic.c\n");
        return 2;
    }
    counters = map_counters(argv[1], sizeof *counters);
    if (sink && !strcmp(argv[3], "udp")) take_udp(bound(SOCK_DGRAM, argv[4], argv[5]));
    if (sink) take_tcp(bound(SOCK_STREAM, argv[4], argv[5]));
    start_ns = strtoull(argv[6], NULL, 10);
    stop_ns = strtoull(argv[7], NULL, 10);
    (udp ? send_udp : send_tcp)(argv + 3);
    for (;;) pause(); /* the end of this process would be an error */
}
