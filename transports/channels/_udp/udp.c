/*
 * Moves runs of packets between the UDP channel's memory and the kernel, many in one call: UDP_SEGMENT out, recvmmsg(2)
 * and UDP_GRO in (udp(7)). What a packet looks like is said in wire.py, what is sent when is decided in
 * connection.py; nothing here outlives a call. Little-endian machines only, as the wire is.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the wire format is little-endian"
#endif

enum { MAX_PACKETS = 44, MAX_DATAGRAM_BYTES = 64000, BATCH = 32, BUFFER_BYTES = 65536, KIND_DATA = 1, CONGESTION_EXPERIENCED = 3, MAX_POLLED = 1024 };

struct header {
    uint32_t check, connection, number;
    uint8_t kind, zero;
    uint16_t length;
    uint64_t offset;
};
_Static_assert(sizeof(struct header) == 24, "as on the wire");

struct target {
    uint64_t start, end; /* of the stream */
    uint8_t *to;
};

struct run {
    uint64_t offset;
    uint64_t num_bytes;
    uint32_t number, num_packets;
    uint32_t marked;
    uint32_t train_bytes; /* of the last datagram of the kernel's, which has one time of arrival */
    int64_t arrived_ns;   /* CLOCK_MONOTONIC, of that */
};
_Static_assert(sizeof(struct run) == 40, "as native.py reads it");

struct reception {
    /* What is requested. */
    const struct target *targets; /* rising, without gaps; what lies behind them may not be sent */
    struct run *runs;
    uint8_t *controls; /* datagrams without data, each behind its length in two bytes */
    uint8_t *buffers;  /* BATCH of BUFFER_BYTES */
    uint64_t prefix;   /* of the stream: received without a gap, and not to be written again */
    uint32_t num_targets, max_runs, controls_bytes;
    uint32_t connection;
    int32_t socket;
    /* What came of it. */
    uint32_t num_runs, num_controls_bytes, num_rejected;
    int32_t more;  /* whether the socket may hold more */
    int32_t error; /* errno, or 0 */
    int64_t now_ns; /* CLOCK_MONOTONIC, after the last was taken out */
};

/* What the kernel says of a datagram of its own, which may hold many of ours. */
struct arrival {
    uint32_t segment_bytes;
    uint32_t marked;
    int64_t arrived_ns;
};

/* One moment by two clocks: the kernel stamps by the first, and everything here goes by the second. */
struct moment {
    int64_t real_ns, monotonic_ns;
};

static int64_t nanoseconds(const struct timespec *time) { return (int64_t)time->tv_sec * 1000000000 + time->tv_nsec; }

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

/* As many packets of one message's bytes as one system call takes. Returns 0, or an errno. */
static int send_batch(int socket_, uint32_t connection, uint32_t number, const uint8_t *frame, uint32_t frame_bytes,
                      const uint8_t *payload, uint64_t start, uint64_t offset, uint32_t num_bytes,
                      uint32_t packet_bytes) {
    struct header headers[MAX_PACKETS];
    struct iovec pieces[3 * MAX_PACKETS];
    size_t num_pieces = 0, num_packets = 0;
    for (uint32_t at = 0; at < num_bytes; at += packet_bytes, num_packets++) {
        uint32_t length = num_bytes - at < packet_bytes ? num_bytes - at : packet_bytes;
        uint64_t in_message = offset + at - start;
        uint32_t of_frame = in_message < frame_bytes ? frame_bytes - in_message : 0;
        if (of_frame > length) of_frame = length;
        struct header *header = &headers[num_packets];
        *header = (struct header){0, connection, number + num_packets, KIND_DATA, 0, length, offset + at};
        pieces[num_pieces++] = (struct iovec){header, sizeof *header};
        uint32_t check = sum((const uint8_t *)header, sizeof *header);
        if (of_frame > 0) {
            pieces[num_pieces++] = (struct iovec){(void *)(frame + in_message), of_frame};
            check += sum(frame + in_message, of_frame);
        }
        if (length > of_frame) {
            const uint8_t *from = payload + (in_message + of_frame - frame_bytes);
            pieces[num_pieces++] = (struct iovec){(void *)from, length - of_frame};
            check += sum_at(from, length - of_frame, of_frame & 3);
        }
        header->check = check;
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
        uint16_t segment_bytes = packet_bytes + sizeof(struct header);
        memcpy(CMSG_DATA(segment), &segment_bytes, sizeof segment_bytes);
    }
    return sendmsg(socket_, &message, MSG_DONTWAIT) < 0 ? errno : 0;
}

/* A run of one message's bytes, as packets of at most packet_bytes. Returns how many of them the kernel took; if none, a
 * negative errno. */
int send_run(int socket_, uint32_t connection, uint32_t number, const uint8_t *frame, uint32_t frame_bytes,
             const uint8_t *payload, uint64_t start, uint64_t offset, uint32_t num_bytes, uint32_t packet_bytes) {
    uint32_t most = MAX_DATAGRAM_BYTES / (packet_bytes + sizeof(struct header));
    if (most > MAX_PACKETS) most = MAX_PACKETS;
    uint32_t sent = 0;
    for (uint32_t at = 0; at < num_bytes; at += most * packet_bytes) {
        uint32_t part = num_bytes - at < most * packet_bytes ? num_bytes - at : most * packet_bytes;
        int error = send_batch(socket_, connection, number + sent, frame, frame_bytes, payload, start, offset + at, part,
                               packet_bytes);
        if (error) return sent ? (int)sent : -error;
        sent += (part + packet_bytes - 1) / packet_bytes;
    }
    return (int)sent;
}

static void place(const struct reception *r, uint64_t offset, const uint8_t *from, uint32_t length) {
    for (uint32_t index = 0; index < r->num_targets && length > 0; index++) {
        const struct target *target = &r->targets[index];
        if (offset >= target->end || offset < target->start) continue;
        uint64_t room = target->end - offset;
        uint32_t part = room < length ? room : length;
        memcpy(target->to + (offset - target->start), from, part);
        offset += part;
        from += part;
        length -= part;
    }
}

static void take_control(struct reception *r, const uint8_t *datagram, uint16_t length) {
    memcpy(r->controls + r->num_controls_bytes, &length, sizeof length);
    memcpy(r->controls + r->num_controls_bytes + sizeof length, datagram, length);
    r->num_controls_bytes += sizeof length + length;
}

static void take(struct reception *r, const uint8_t *datagram, uint32_t length, const struct arrival *arrival, int first) {
    struct header header;
    if (length < sizeof header) {
        r->num_rejected++;
        return;
    }
    memcpy(&header, datagram, sizeof header);
    if (header.length != length - sizeof header || header.zero || header.check != sum(datagram + 4, length - 4)) {
        r->num_rejected++;
        return;
    }
    if (header.kind != KIND_DATA || header.connection != r->connection) {
        /* Of an unknown connection's packet only the header matters, but it must stay a whole one. */
        if (r->num_controls_bytes + 2 + length <= r->controls_bytes) take_control(r, datagram, length);
        return;
    }
    uint64_t allowed = r->num_targets ? r->targets[r->num_targets - 1].end : 0;
    if (header.length == 0 || header.offset > allowed || header.length > allowed - header.offset) {
        r->num_rejected++;
        return;
    }
    struct run *last = r->num_runs ? &r->runs[r->num_runs - 1] : NULL;
    int follows = last && last->number + last->num_packets == header.number &&
                  last->offset + last->num_bytes == header.offset && last->marked == arrival->marked;
    if (!follows && r->num_runs == r->max_runs) return; /* as if it had been lost */
    if (header.offset >= r->prefix) place(r, header.offset, datagram + sizeof header, header.length);
    if (follows) {
        last->num_packets++;
        last->num_bytes += header.length;
        last->train_bytes = header.length + (first ? 0 : last->train_bytes);
        last->arrived_ns = arrival->arrived_ns;
    } else {
        r->runs[r->num_runs++] = (struct run){header.offset, header.length, header.number, 1,
                                              arrival->marked, header.length, arrival->arrived_ns};
    }
}

static struct arrival read_arrival(struct msghdr *message, uint32_t length, const struct moment *now) {
    struct arrival arrival = {length, 0, now->monotonic_ns};
    for (struct cmsghdr *each = CMSG_FIRSTHDR(message); each; each = CMSG_NXTHDR(message, each)) {
        if (each->cmsg_level == IPPROTO_UDP && each->cmsg_type == UDP_GRO) {
            int segment_bytes;
            memcpy(&segment_bytes, CMSG_DATA(each), sizeof segment_bytes);
            if (segment_bytes > 0) arrival.segment_bytes = segment_bytes;
        } else if (each->cmsg_level == IPPROTO_IP && each->cmsg_type == IP_TOS) {
            arrival.marked = (*CMSG_DATA(each) & 3) == CONGESTION_EXPERIENCED;
        } else if (each->cmsg_level == SOL_SOCKET && each->cmsg_type == SCM_TIMESTAMPNS) {
            struct timespec came;
            memcpy(&came, CMSG_DATA(each), sizeof came);
            int64_t age_ns = now->real_ns - nanoseconds(&came);
            if (age_ns > 0) arrival.arrived_ns -= age_ns; /* a clock that was set back says nothing */
        }
    }
    return arrival;
}

/* What the socket holds, at most one batch. */
void receive_runs(struct reception *r) {
    struct mmsghdr messages[BATCH];
    struct iovec pieces[BATCH];
    union {
        char bytes[2 * CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(struct timespec))];
        struct cmsghdr align;
    } controls[BATCH];
    memset(messages, 0, sizeof messages);
    for (size_t index = 0; index < BATCH; index++) {
        pieces[index] = (struct iovec){r->buffers + index * BUFFER_BYTES, BUFFER_BYTES};
        messages[index].msg_hdr = (struct msghdr){.msg_iov = &pieces[index], .msg_iovlen = 1,
                                                  .msg_control = controls[index].bytes,
                                                  .msg_controllen = sizeof controls[index].bytes};
    }
    r->num_runs = r->num_controls_bytes = r->num_rejected = 0;
    int received = recvmmsg(r->socket, messages, BATCH, MSG_DONTWAIT, NULL);
    r->error = received >= 0 || errno == EAGAIN || errno == EINTR ? 0 : errno;
    r->more = received == BATCH;
    struct timespec real, monotonic;
    clock_gettime(CLOCK_REALTIME, &real);
    clock_gettime(CLOCK_MONOTONIC, &monotonic);
    struct moment now = {nanoseconds(&real), nanoseconds(&monotonic)};
    r->now_ns = now.monotonic_ns;
    for (int index = 0; index < received; index++) {
        struct msghdr *message = &messages[index].msg_hdr;
        uint32_t length = messages[index].msg_len;
        struct arrival arrival = read_arrival(message, length, &now);
        const uint8_t *bytes = r->buffers + (size_t)index * BUFFER_BYTES;
        if (length == 0) r->num_rejected++;
        for (uint32_t at = 0; at < length; at += arrival.segment_bytes) {
            uint32_t rest = length - at;
            take(r, bytes + at, rest < arrival.segment_bytes ? rest : arrival.segment_bytes, &arrival, at == 0);
        }
    }
}

/* Waits until one of the descriptors can be read, but looks at none except the last one before quiet_ns have passed.
 * Returns how many can, or a negative errno; ready says which. */
int wait_readable(const int32_t *descriptors, uint32_t num_descriptors, int64_t quiet_ns, int64_t timeout_ns,
                  uint8_t *ready) {
    struct pollfd polled[MAX_POLLED];
    if (num_descriptors > MAX_POLLED) return -EINVAL;
    for (uint32_t index = 0; index < num_descriptors; index++)
        polled[index] = (struct pollfd){.fd = descriptors[index], .events = POLLIN};
    if (quiet_ns > 0 && num_descriptors > 0) {
        struct timespec quiet = {quiet_ns / 1000000000, quiet_ns % 1000000000};
        if (ppoll(polled + num_descriptors - 1, 1, &quiet, NULL) < 0 && errno != EINTR) return -errno;
        timeout_ns = timeout_ns > quiet_ns ? timeout_ns - quiet_ns : 0;
    }
    struct timespec timeout = {timeout_ns / 1000000000, timeout_ns % 1000000000};
    int num_ready = ppoll(polled, num_descriptors, &timeout, NULL);
    if (num_ready < 0) return errno == EINTR ? 0 : -errno;
    for (uint32_t index = 0; index < num_descriptors; index++) ready[index] = polled[index].revents != 0;
    return num_ready;
}

/* A descriptor that can be read when the time that set_alarm() gave it is over; or a negative errno. */
int open_alarm(void) {
    int descriptor = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    return descriptor < 0 ? -errno : descriptor;
}

/* In so many nanoseconds, once; 0: not at all, and what has gone off is forgotten. */
void set_alarm(int descriptor, int64_t after_ns) {
    struct itimerspec when = {.it_value = {after_ns / 1000000000, after_ns % 1000000000}};
    timerfd_settime(descriptor, 0, &when, NULL);
}
