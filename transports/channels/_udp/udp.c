/*
 * One member's UDP connections and their sockets: what comes is read (recvmmsg(2) and UDP_GRO, many packets in one call),
 * what is due is sent (UDP_SEGMENT in udp(7), likewise), and in between it waits, until a message is complete or something
 * is out of the ordinary, which is left to the caller. What happens when is decided in connection.h, without sockets and
 * clocks; Python opens and closes (native.py, endpoint.py). Nobody may call while somebody else does.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>

#include "connection.h"

enum { MAX_PACKETS = 44, MAX_DATAGRAM_BYTES = 64000, BATCH = 32, BUFFER_BYTES = 65536, CONGESTION_EXPERIENCED = 3,
       MAX_PEERS = 1023, RUNS_PER_STEP = 8, BATCHES_PER_STEP = 4 };
/* A member in the middle of long messages looks after them this seldom, as an interrupt controller would... */
static const double REST_S = 1e-3;
/* ...or when the next packets may leave, if that is not much later, so that it wakes up once for both... */
static const double LONGEST_REST_S = 2e-3;
/* ...and begins to look at once when, at the rate of late, less than this is missing of one. */
static const double LATE_BYTES = 64 * 1024;
/* Whoever looks after connections that nobody drives steps in after so long. */
static const double AWAY_S = 2e-3;
/* So often the interpreter sees to its signals. */
static const double LONGEST_CALL_S = 0.1;

/* One connection and its socket, which is connected to the peer's. */
struct peer {
    struct connection *connection;
    int32_t socket;
    uint32_t refused; /* whether the peer's host has said that nobody listens there any more */
    double due_s;     /* when the connection wants to be looked after, whatever comes */
    double moved_s;   /* when anything arrived last, here or there... */
    uint64_t moved_bytes; /* ...which grows then */
    uint64_t arrived_bytes;
    double arrived_s, arrival_rate; /* bytes per second that arrived of late, smoothed */
};

struct endpoint {
    struct peer *peers;
    uint8_t *buffers; /* BATCH of BUFFER_BYTES */
    struct tokens *completions;
    double dilation;   /* seconds of the machine in one of the protocol's */
    uint64_t sequence; /* of the latest operation */
    uint32_t num_peers;
    int32_t wake;  /* an eventfd: read, it makes the call return */
    int32_t alarm; /* a timerfd that goes off when nobody has driven for AWAY_S... */
    uint32_t away; /* ...which that is */
    uint32_t woken;
    uint32_t failed_peer; /* the first that the outcome is about */
    int32_t error;        /* its errno */
};

/* Why a call returned: nothing more than that (ONGOING), something has moved, the deadline, something of the failed peer that
 * the caller finds in it, the kernel's error, a packet that is too long for the path, the peer has left and sent no more. */
enum outcome { ONGOING, MOVED, LATE, ENDED, FAILED, TOO_LONG, GONE };

/* One moment by two clocks: the kernel stamps by the first, and everything here goes by the second. */
struct moment {
    int64_t real_ns, monotonic_ns;
};

static int64_t nanoseconds(const struct timespec *time) { return (int64_t)time->tv_sec * 1000000000 + time->tv_nsec; }

static int64_t read_clock(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return nanoseconds(&now);
}

static double protocol_s(const struct endpoint *e, int64_t machine_ns) { return machine_ns * 1e-9 / e->dilation; }

static double now_s_of(const struct endpoint *e) { return protocol_s(e, read_clock(CLOCK_MONOTONIC)); }

/* --- out ---------------------------------------------------------------------------------------------------------- */

/* Packets of a run, as many as one system call takes. Returns 0, or an errno. */
static int send_batch(const struct peer *peer, const struct run *run, uint32_t first, uint32_t num_packets) {
    struct packet packets[MAX_PACKETS];
    struct iovec pieces[3 * MAX_PACKETS];
    size_t num_pieces = 0;
    for (uint32_t index = 0; index < num_packets; index++) {
        struct packet *packet = &packets[index];
        find_packet(peer->connection, run, first + index, packet);
        pieces[num_pieces++] = (struct iovec){&packet->header, sizeof packet->header};
        if (packet->num_frame_bytes > 0)
            pieces[num_pieces++] = (struct iovec){(void *)packet->frame, packet->num_frame_bytes};
        if (packet->num_payload_bytes > 0)
            pieces[num_pieces++] = (struct iovec){(void *)packet->payload, packet->num_payload_bytes};
    }
    union {
        char bytes[CMSG_SPACE(sizeof(uint16_t))];
        struct cmsghdr align;
    } control = {{0}};
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = num_pieces};
    if (num_packets > 1) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *segment = CMSG_FIRSTHDR(&message);
        segment->cmsg_level = IPPROTO_UDP;
        segment->cmsg_type = UDP_SEGMENT;
        segment->cmsg_len = CMSG_LEN(sizeof(uint16_t));
        uint16_t segment_bytes = peer->connection->outgoing.packet_bytes + sizeof(struct header);
        memcpy(CMSG_DATA(segment), &segment_bytes, sizeof segment_bytes);
    }
    return sendmsg(peer->socket, &message, MSG_DONTWAIT) < 0 ? errno : 0;
}

/* A run of one message's bytes. Returns how many of its packets the kernel took; if none, a negative errno. */
static int send_run(const struct peer *peer, const struct run *run) {
    uint32_t most = MAX_DATAGRAM_BYTES / (peer->connection->outgoing.packet_bytes + sizeof(struct header)), sent = 0;
    most = most > MAX_PACKETS ? MAX_PACKETS : most > 0 ? most : 1;
    while (sent < run->num_packets) {
        uint32_t part = run->num_packets - sent < most ? run->num_packets - sent : most;
        int error = send_batch(peer, run, sent, part);
        if (error) return sent > 0 ? (int)sent : -error;
        sent += part;
    }
    return (int)sent;
}

static int is_passing(int error) { return error == EAGAIN || error == ENOBUFS || error == EINTR; }

static enum outcome failed(struct endpoint *e, const struct peer *peer, int error) {
    e->failed_peer = peer - e->peers, e->error = error;
    return error == EMSGSIZE ? TOO_LONG : FAILED;
}

/* Datagrams without data. What the kernel has no room for is as if the network had lost it. */
static enum outcome send_controls(struct endpoint *e, struct peer *peer, double now_s) {
    struct connection *c = peer->connection;
    const uint8_t *datagram;
    uint32_t at = 0;
    uint16_t length;
    int error = 0;
    queue_due_controls(c, now_s);
    while (!error && (datagram = next_control(c, &at, &length)))
        if (send(peer->socket, datagram, length, MSG_DONTWAIT) < 0) {
            if (errno == ECONNREFUSED) peer->refused = 1;
            else error = errno;
        }
    c->num_waiting_bytes = 0;
    return error && !is_passing(error) ? failed(e, peer, error) : ONGOING;
}

static enum outcome transmit(struct endpoint *e, struct peer *peer, double now_s) {
    struct connection *c = peer->connection;
    struct run run;
    enum outcome outcome = send_controls(e, peer, now_s);
    for (int index = 0; outcome == ONGOING && index < RUNS_PER_STEP && connection_next_run(c, now_s, &run); index++) {
        int sent = send_run(peer, &run);
        if (sent == (int)run.num_packets) continue;
        connection_take_back(c, &run, sent > 0 ? sent : 0, now_s);
        if (sent == -ECONNREFUSED) peer->refused = 1;
        else if (sent < 0 && !is_passing(-sent)) return failed(e, peer, -sent);
        break;
    }
    return outcome;
}

/* --- in ----------------------------------------------------------------------------------------------------------- */

/* What the kernel says of a datagram of its own, which may hold many of ours. */
struct envelope {
    uint32_t segment_bytes;
    uint32_t marked;
    int64_t arrived_ns;
};

static struct envelope read_envelope(struct msghdr *message, uint32_t length, const struct moment *now) {
    struct envelope envelope = {length, 0, now->monotonic_ns};
    for (struct cmsghdr *each = CMSG_FIRSTHDR(message); each; each = CMSG_NXTHDR(message, each)) {
        if (each->cmsg_level == IPPROTO_UDP && each->cmsg_type == UDP_GRO) {
            int segment_bytes;
            memcpy(&segment_bytes, CMSG_DATA(each), sizeof segment_bytes);
            if (segment_bytes > 0) envelope.segment_bytes = segment_bytes;
        } else if (each->cmsg_level == IPPROTO_IP && each->cmsg_type == IP_TOS) {
            envelope.marked = (*CMSG_DATA(each) & 3) == CONGESTION_EXPERIENCED;
        } else if (each->cmsg_level == SOL_SOCKET && each->cmsg_type == SCM_TIMESTAMPNS) {
            struct timespec came;
            memcpy(&came, CMSG_DATA(each), sizeof came);
            int64_t age_ns = now->real_ns - nanoseconds(&came);
            if (age_ns > 0) envelope.arrived_ns -= age_ns; /* a clock that was set back says nothing */
        }
    }
    return envelope;
}

static void take(const struct endpoint *e, struct connection *c, const uint8_t *bytes, uint32_t length,
                 const struct envelope *envelope, double now_s) {
    double arrived_s = protocol_s(e, envelope->arrived_ns);
    if (length == 0) c->num_rejected++;
    for (uint32_t at = 0; at < length; at += envelope->segment_bytes) {
        uint32_t rest = length - at;
        connection_receive(c, bytes + at, rest < envelope->segment_bytes ? rest : envelope->segment_bytes,
                           envelope->marked, at > 0, arrived_s, now_s);
    }
}

/* What the socket holds, at most one batch. Returns whether it may hold more, or a negative errno. */
static int receive_batch(const struct endpoint *e, struct peer *peer) {
    struct mmsghdr messages[BATCH];
    struct iovec pieces[BATCH];
    union {
        char bytes[2 * CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(struct timespec))];
        struct cmsghdr align;
    } controls[BATCH];
    memset(messages, 0, sizeof messages);
    for (size_t index = 0; index < BATCH; index++) {
        pieces[index] = (struct iovec){e->buffers + index * BUFFER_BYTES, BUFFER_BYTES};
        messages[index].msg_hdr = (struct msghdr){.msg_iov = &pieces[index], .msg_iovlen = 1,
                                                  .msg_control = controls[index].bytes,
                                                  .msg_controllen = sizeof controls[index].bytes};
    }
    int received = recvmmsg(peer->socket, messages, BATCH, MSG_DONTWAIT, NULL);
    if (received < 0) return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    struct moment now = {read_clock(CLOCK_REALTIME), read_clock(CLOCK_MONOTONIC)};
    double now_s = protocol_s(e, now.monotonic_ns);
    for (int index = 0; index < received; index++) {
        struct envelope envelope = read_envelope(&messages[index].msg_hdr, messages[index].msg_len, &now);
        take(e, peer->connection, e->buffers + (size_t)index * BUFFER_BYTES, messages[index].msg_len, &envelope, now_s);
    }
    connection_settle(peer->connection, now_s);
    return received == BATCH;
}

/* How fast it arrives, and whether anything moves. */
static void note_arrival(struct peer *peer, double now_s) {
    const struct connection *c = peer->connection;
    uint64_t arrived_bytes = c->incoming.payload_bytes, moved_bytes = arrived_bytes + c->outgoing.delivered_bytes;
    if (arrived_bytes != peer->arrived_bytes) {
        double rate = (arrived_bytes - peer->arrived_bytes) / fmax(now_s - peer->arrived_s, 1e-6);
        peer->arrival_rate += (rate - peer->arrival_rate) / 4;
        peer->arrived_bytes = arrived_bytes, peer->arrived_s = now_s;
    }
    if (moved_bytes != peer->moved_bytes) peer->moved_bytes = moved_bytes, peer->moved_s = now_s;
}

static enum outcome receive(struct endpoint *e, struct peer *peer) {
    peer->due_s = 0.0;
    for (int batch = 0; batch < BATCHES_PER_STEP; batch++) {
        int more = receive_batch(e, peer);
        if (more == -ECONNREFUSED) peer->refused = 1; /* what it said before lies behind the error */
        else if (more < 0) return failed(e, peer, -more);
        else if (!more) break;
    }
    note_arrival(peer, now_s_of(e));
    return ONGOING;
}

/* --- waiting ------------------------------------------------------------------------------------------------------ */

static struct timespec duration(double seconds) {
    int64_t ns = seconds <= 0.0 ? 0 : seconds >= 3600.0 ? 3600 * INT64_C(1000000000) : (int64_t)(seconds * 1e9);
    return (struct timespec){ns / 1000000000, ns % 1000000000};
}

/* ppoll(2) for so long of the machine's time. Returns how many can be read: none when a signal came. */
static int await(struct pollfd *polled, uint32_t num, double machine_s) {
    struct timespec timeout = duration(machine_s);
    int num_ready = ppoll(polled, num, &timeout, NULL);
    return num_ready >= 0 ? num_ready : errno == EINTR ? 0 : -errno;
}

/* Until one of the descriptors can be read, at most so long. Returns how many can, or a negative errno; `ready` says
 * which. */
int wait_readable(const int32_t *descriptors, uint32_t num_descriptors, double machine_s, uint8_t *ready) {
    struct pollfd polled[MAX_PEERS + 1];
    if (num_descriptors > MAX_PEERS + 1) return -EINVAL;
    for (uint32_t index = 0; index < num_descriptors; index++)
        polled[index] = (struct pollfd){.fd = descriptors[index], .events = POLLIN};
    int num_ready = await(polled, num_descriptors, machine_s);
    for (uint32_t index = 0; index < num_descriptors; index++) ready[index] = num_ready > 0 && polled[index].revents != 0;
    return num_ready;
}

/* A descriptor that can be read when the time that set_alarm() gave it is over; or a negative errno. */
int open_alarm(void) {
    int descriptor = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    return descriptor < 0 ? -errno : descriptor;
}

/* In so long, once; 0: not at all, and what has gone off is forgotten. */
void set_alarm(int descriptor, double machine_s) {
    struct itimerspec when = {.it_value = duration(machine_s)};
    if (machine_s > 0.0 && when.it_value.tv_sec == 0 && when.it_value.tv_nsec == 0) when.it_value.tv_nsec = 1;
    timerfd_settime(descriptor, 0, &when, NULL);
}

/* How long nobody needs to know what arrives at one; infinity: it has no say in it. */
static double patience_s(const struct peer *peer) {
    const struct connection *c = peer->connection;
    double missing = (double)missing_bytes(&c->incoming), spare_s = connection_spare_s(c) / 2;
    if (missing == 0.0) return c->outgoing.num_pending > 0 && spare_s < REST_S ? spare_s : INFINITY;
    if (peer->arrival_rate == 0.0) return 0.0;
    return fmin(spare_s, fmax(0.0, (missing - LATE_BYTES) / peer->arrival_rate));
}

/* How long arrivals can wait: not at all unless something long is awaited and nothing that may be short. With something to
 * send soon after that, until then. */
double endpoint_rest_s(const struct endpoint *e, double due_in_s) {
    double least_s = INFINITY;
    for (uint32_t index = 0; index < e->num_peers; index++) least_s = fmin(least_s, patience_s(&e->peers[index]));
    if (!isfinite(least_s)) return 0.0;
    return due_in_s > REST_S && due_in_s <= fmin(least_s, LONGEST_REST_S) ? due_in_s : fmin(least_s, REST_S);
}

/* --- driving ------------------------------------------------------------------------------------------------------ */

/* Look after the connections whose time has come. *due_s: when to come back at the latest. */
static enum outcome serve(struct endpoint *e, double *due_s) {
    double now_s = now_s_of(e);
    *due_s = INFINITY;
    for (uint32_t index = 0; index < e->num_peers; index++) {
        struct peer *peer = &e->peers[index];
        if (peer->due_s <= now_s) {
            connection_expire(peer->connection, now_s);
            enum outcome outcome = peer->refused ? ONGOING : transmit(e, peer, now_s);
            if (outcome != ONGOING) return outcome;
            peer->due_s = peer->refused ? INFINITY : connection_deadline_s(peer->connection);
        }
        *due_s = fmin(*due_s, peer->due_s);
    }
    return ONGOING;
}

/* Wait so long for something to come, the first quiet_s of it for a waking only, read what has, and send what is due. */
static enum outcome step(struct endpoint *e, double wait_s, double quiet_s, double *due_s) {
    struct pollfd polled[MAX_PEERS + 1];
    uint32_t num = e->num_peers;
    if (num > MAX_PEERS) return failed(e, e->peers, EINVAL);
    for (uint32_t index = 0; index < num; index++)
        polled[index] = (struct pollfd){.fd = e->peers[index].socket, .events = POLLIN};
    polled[num] = (struct pollfd){.fd = e->wake, .events = POLLIN};
    if (quiet_s > wait_s) quiet_s = wait_s;
    int found = quiet_s > 0.0 ? await(polled + num, 1, quiet_s * e->dilation) : 0;
    if (found >= 0) found = await(polled, num + 1, (found > 0 ? 0.0 : wait_s - quiet_s) * e->dilation);
    if (found < 0) return failed(e, e->peers, -found);
    if (polled[num].revents & POLLIN) {
        eventfd_t value;
        eventfd_read(e->wake, &value);
        e->woken = 1;
    }
    for (uint32_t index = 0; index < num; index++)
        if (polled[index].revents) {
            enum outcome outcome = receive(e, &e->peers[index]);
            if (outcome != ONGOING) return outcome;
        }
    return serve(e, due_s);
}

/* Whether something of this peer stands in the way of going on, which the caller then finds in it. */
static enum outcome check(struct endpoint *e, struct peer *peer) {
    struct connection *c = peer->connection;
    int ended = c->incoming.disagreement || c->restarted;
    if (!ended && peer->refused && !has_farewell(c)) {
        enum outcome outcome = receive(e, peer); /* its CLOSE may lie behind the ICMP error */
        if (outcome != ONGOING) return outcome;
        ended = !has_farewell(c) || c->incoming.disagreement || c->restarted;
    }
    if (has_farewell(c)) ended |= e->sequence > c->farewell_after || connection_first_pending(c) != NULL;
    e->failed_peer = peer - e->peers;
    return ended ? ENDED : ONGOING;
}

static enum outcome check_all(struct endpoint *e) {
    enum outcome outcome = ONGOING;
    for (uint32_t index = 0; outcome == ONGOING && index < e->num_peers; index++) {
        const struct connection *c = e->peers[index].connection;
        if (e->peers[index].refused || c->restarted || c->peer_leaves || c->incoming.disagreement)
            outcome = check(e, &e->peers[index]);
    }
    return outcome;
}

static enum outcome drive(struct endpoint *e, double deadline_s, double until_s) {
    double wait_s = 0.0, quiet_s = 0.0, due_s, ends_s = now_s_of(e) + LONGEST_CALL_S / e->dilation;
    for (;;) {
        enum outcome outcome = step(e, wait_s, quiet_s, &due_s);
        if (outcome == ONGOING) outcome = check_all(e);
        if (outcome != ONGOING) return outcome;
        if (e->completions->num > 0 || e->woken) return MOVED;
        double now_s = now_s_of(e);
        if (now_s >= until_s) return ONGOING;
        if (now_s >= deadline_s) return LATE;
        if (now_s >= ends_s) return ONGOING;
        wait_s = fmin(fmin(deadline_s, until_s), fmin(due_s, ends_s)) - now_s;
        quiet_s = endpoint_rest_s(e, due_s - now_s);
    }
}

static enum outcome peek(struct endpoint *e, struct peer *peer, double deadline_s, uint8_t *frame) {
    double wait_s = 0.0, due_s, ends_s = now_s_of(e) + LONGEST_CALL_S / e->dilation;
    for (;;) {
        enum outcome outcome = step(e, wait_s, 0.0, &due_s);
        if (outcome != ONGOING) return outcome;
        if (incoming_peek(&peer->connection->incoming, frame)) return MOVED;
        if (has_farewell(peer->connection)) return GONE;
        outcome = check(e, peer);
        if (outcome != ONGOING) return outcome;
        double now_s = now_s_of(e);
        if (now_s >= deadline_s) return LATE;
        if (now_s >= ends_s) return ONGOING;
        wait_s = fmin(fmin(deadline_s, due_s), ends_s) - now_s;
    }
}

/* Somebody drives, or nobody does any more. Setting the alarm wakes nobody. */
static void set_away(struct endpoint *e, int away) {
    e->away = away;
    set_alarm(e->alarm, away ? AWAY_S * e->dilation : 0.0);
}

/* Move bytes until something has completed or somebody woke it (MOVED), the time `until_s` is over (ONGOING; it may also be
 * sooner), or the deadline (LATE). */
enum outcome endpoint_drive(struct endpoint *e, double deadline_s, double until_s) {
    set_away(e, 0);
    enum outcome outcome = drive(e, deadline_s, until_s);
    set_away(e, 1);
    return outcome;
}

/* Move bytes until a message has come that nobody expects yet, whose frame header is put there (MOVED), its sender has left
 * (GONE), or the deadline (LATE); ONGOING: not yet. */
enum outcome endpoint_peek(struct endpoint *e, uint32_t index, double deadline_s, uint8_t *frame) {
    set_away(e, 0);
    enum outcome outcome = peek(e, &e->peers[index], deadline_s, frame);
    set_away(e, 1);
    return outcome;
}

/* One look at what has come and what is due, while nobody drives. *wait_s: for how long there is nothing more to do. */
enum outcome endpoint_look(struct endpoint *e, double *wait_s) {
    double due_s = INFINITY;
    enum outcome outcome = step(e, 0.0, 0.0, &due_s);
    *wait_s = fmax(due_s - now_s_of(e), 0.0);
    return outcome;
}

static int lingers(const struct peer *peer) {
    const struct connection *c = peer->connection;
    return !peer->refused && !(outgoing_delivered(&c->outgoing) && c->leave_answered);
}

/* Once every connection leaves: until all that was sent, and that, has arrived, or the time is over. Whoever cannot be
 * reached is not waited for. Returns whether that is so; else there is more to wait for. */
int endpoint_linger(struct endpoint *e, double deadline_s) {
    double wait_s = 0.0, due_s = 0.0, ends_s = fmin(deadline_s, now_s_of(e) + LONGEST_CALL_S / e->dilation);
    while (now_s_of(e) < ends_s) {
        if (step(e, wait_s, 0.0, &due_s) != ONGOING) {
            e->peers[e->failed_peer].refused = 1;
            wait_s = 0.0;
            continue;
        }
        int num_lingering = 0;
        for (uint32_t index = 0; index < e->num_peers; index++) num_lingering += lingers(&e->peers[index]);
        if (num_lingering == 0) return 1;
        wait_s = fmin(due_s, ends_s) - now_s_of(e);
    }
    return ends_s >= deadline_s;
}

/* A message to send; see connection_post(). */
void endpoint_send(struct endpoint *e, uint32_t index, const uint8_t *frame, const uint8_t *payload, uint64_t num_bytes,
                   int64_t token) {
    struct peer *peer = &e->peers[index];
    if (connection_first_pending(peer->connection) == NULL) peer->moved_s = now_s_of(e);
    connection_post(peer->connection, frame, payload, num_bytes, token);
    peer->due_s = 0.0;
}

/* A message to expect; see incoming_expect(). */
void endpoint_expect(struct endpoint *e, uint32_t index, const uint8_t *frame, uint8_t *payload, uint64_t num_bytes,
                     int64_t token) {
    struct peer *peer = &e->peers[index];
    if (connection_first_pending(peer->connection) == NULL) peer->moved_s = now_s_of(e);
    incoming_expect(&peer->connection->incoming, frame, payload, num_bytes, token);
    peer->due_s = 0.0;
}
