/*
 * Carries out one member's part of a collective over its TCP connections: sends what is ready, receives, adds what is to
 * be added while it is in the cache, and waits when there is nothing to do. It stops for whatever is out of the ordinary
 * (an end, a wrong header, a waking, the deadline) and leaves it to the caller, who may call again with the same state.
 * Sockets are non-blocking and in one edge-triggered epoll(7). Little-endian machines only, as the wire is.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdalign.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

#include <linux/errqueue.h> /* needs time.h before it */

#include "arithmetic.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the wire format is little-endian"
#endif

enum { HEADER_BYTES = 40, CHECKED_BYTES = 36, SEQUENCE_AT = 8, PHASE_AT = 12, COUNT_AT = 16 }; /* see framing.py */
enum { GATHER_BYTES = 256 * 1024, PIECE_BYTES = 128 * 1024, MAX_GATHERED = 16, MAX_EVENTS = 64, LOOK_MS = 1000 };
enum { SUPER_FRAME_BYTES = 62 * 1024, LAST_BYTES = 128 * 1024 };
enum { NUM_BUFFERS = 3 };
enum kind { SEND, RECEIVE, REDUCE, ADD };
enum outcome { DONE, WOKEN, LATE, ENDING, LOST, MISMATCH };

struct step {
    uint8_t *view;         /* what is sent; where what is received goes, or what it is added to */
    const uint8_t *addend; /* of ADD, which moves nothing */
    uint64_t num_bytes;
    uint32_t kind, lane, position; /* in its lane */
    uint32_t waiting;              /* for so many steps to be done */
    uint32_t first_successor, num_successors;
    uint32_t arrived, done;
};

/* What a connection keeps from schedule to schedule. */
struct connection {
    uint64_t sent_bytes, received_bytes;
    int32_t socket;
    uint32_t ending;    /* its peer will say nothing more than what the kernel holds of it */
    uint32_t low_water; /* what SO_RCVLOWAT is */
    uint32_t cut_short; /* it has been sent the beginning of a message, and not the end */
    /* Sends without a copy since it was made, each of which the kernel reports the end of: the first `num_completed` of them
     * have ended, `num_notified` in all, and for `num_copied` it made a copy after all. */
    uint32_t num_zero_copy, num_completed, num_notified, num_copied;
};

/* The messages to, or from, one peer over one connection, in the order in which they travel. */
struct lane {
    struct connection *connection;
    uint64_t slots; /* offset of `window` of them, for messages that are to be added */
    uint64_t moved; /* bytes of the message under way, its header counted */
    int64_t moved_ns;
    uint64_t added; /* bytes of the message under way that have been added already */
    int32_t error;
    uint32_t first, num_steps; /* in `order` */
    uint32_t next;             /* position of the message under way */
    uint32_t oldest;           /* position of the first that is not done */
    uint32_t sends, blocked, agreed;
    uint32_t first_phase; /* that of its first message; connections take a peer's messages in turn */
    uint8_t header[HEADER_BYTES];
};

/* What the caller writes before a run. */
struct operands {
    uint64_t sequence;           /* of the operation in its group */
    int64_t deadline_ns;
    uint8_t *slots;              /* memory for messages that are to be added */
    uint64_t bases[NUM_BUFFERS]; /* the buffers' addresses */
};

struct run {
    struct operands operands;
    const struct step *schedule; /* with offsets into buffers for views */
    struct step *steps;          /* the same at work */
    struct lane *lanes;
    const uint32_t *order, *successors;
    const uint32_t *buffers; /* for each step, the numbers of the buffers of its view and its addend */
    uint64_t slot_bytes;
    int64_t first_ns;  /* when the first message completed; 0: none has */
    uint64_t sequence; /* of the operation that has begun last */
    uint32_t num_steps, num_lanes, num_left, element_bytes, type, reduction, low_water_bytes, same_schedule;
    uint32_t num_streams, window; /* connections for each peer; messages of a lane that may wait to be added */
    uint32_t zero_copy_bytes;          /* messages as long as that are sent without a copy; 0: none */
    int32_t epoll, wake, failed_peer; /* of LOST and MISMATCH the lane */
    uint8_t header[HEADER_BYTES]; /* of every message, but for phase, count and check */
    int32_t num_ended, ended[MAX_EVENTS]; /* sockets */
};

static uint32_t crc_table[256];

__attribute__((constructor)) static void fill_crc_table(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; bit++)
            value = value & 1 ? value >> 1 ^ 0xEDB88320u : value >> 1;
        crc_table[byte] = value;
    }
}

/* The CRC-32 of zlib. */
static uint32_t crc32(const uint8_t *bytes, size_t num_bytes) {
    uint32_t value = 0xFFFFFFFFu;
    for (size_t at = 0; at < num_bytes; at++)
        value = value >> 8 ^ crc_table[(value ^ bytes[at]) & 0xFF];
    return ~value;
}

static void write_header(const struct run *run, const struct step *step, uint8_t *header) {
    uint64_t count = step->num_bytes / run->element_bytes;
    uint32_t phase = run->lanes[step->lane].first_phase + step->position * run->num_streams;
    memcpy(header, run->header, HEADER_BYTES);
    memcpy(header + PHASE_AT, &phase, sizeof phase);
    memcpy(header + COUNT_AT, &count, sizeof count);
    uint32_t check = crc32(header, CHECKED_BYTES);
    memcpy(header + CHECKED_BYTES, &check, sizeof check);
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static uint8_t *slot(const struct run *run, const struct lane *lane, const struct step *step) {
    return run->operands.slots + lane->slots + step->position % run->window * run->slot_bytes;
}

static struct step *step_at(const struct run *run, const struct lane *lane, uint32_t position) {
    return &run->steps[run->order[lane->first + position]];
}

static void add_whole(struct run *run, struct step *step);

/* A step is done: what waited for it alone may go on, and may be done by that. No deeper than lanes have slots and
 * buffers have parts that are added, for only what is here is done at once. */
static void finish(struct run *run, struct step *step) {
    step->done = 1;
    run->num_left--;
    if (step->kind != ADD) {
        struct lane *lane = &run->lanes[step->lane];
        if (!run->first_ns)
            run->first_ns = now_ns();
        while (lane->oldest < lane->num_steps && step_at(run, lane, lane->oldest)->done)
            lane->oldest++;
    }
    for (uint32_t each = 0; each < step->num_successors; each++) {
        struct step *later = &run->steps[run->successors[step->first_successor + each]];
        if (--later->waiting == 0 && (later->arrived || later->kind == ADD))
            add_whole(run, later);
    }
}

/* What it is added to is ready, and all of it is here. */
static void add_whole(struct run *run, struct step *step) {
    const uint8_t *from = step->kind == ADD ? step->addend : slot(run, &run->lanes[step->lane], step);
    combine(run->type, run->reduction, step->view, from, step->num_bytes);
    finish(run, step);
}

static int lost(struct run *run, struct lane *lane, int error) {
    lane->error = error;
    run->failed_peer = (int32_t)(lane - run->lanes);
    return LOST;
}

/* What the kernel has read from our memory for good is done. */
static void take_back(struct run *run, struct lane *lane) {
    while (lane->oldest < lane->next && (int32_t)(step_at(run, lane, lane->oldest)->arrived - lane->connection->num_completed) <= 0)
        finish(run, step_at(run, lane, lane->oldest));
}

/* Read the ends of sends without a copy, which the kernel tells by their numbers, in order but where packets were lost:
 * then they count when none is out any more. Returns whether there were any. */
static int hear_ends(struct run *run, struct lane *lane) {
    alignas(struct cmsghdr) uint8_t control[128];
    int found = 0;
    for (;;) {
        struct msghdr message = {.msg_control = control, .msg_controllen = sizeof control};
        if (recvmsg(lane->connection->socket, &message, MSG_ERRQUEUE) < 0)
            break;
        struct cmsghdr *notice = CMSG_FIRSTHDR(&message);
        struct sock_extended_err end;
        if (!notice || notice->cmsg_len < CMSG_LEN(sizeof end))
            continue;
        memcpy(&end, CMSG_DATA(notice), sizeof end);
        if (end.ee_origin != SO_EE_ORIGIN_ZEROCOPY)
            continue;
        found = 1;
        lane->connection->num_notified += end.ee_data - end.ee_info + 1;
        if (end.ee_code & SO_EE_CODE_ZEROCOPY_COPIED)
            lane->connection->num_copied += end.ee_data - end.ee_info + 1;
        if (end.ee_info == lane->connection->num_completed)
            lane->connection->num_completed = end.ee_data + 1;
    }
    if (lane->connection->num_notified == lane->connection->num_zero_copy)
        lane->connection->num_completed = lane->connection->num_zero_copy;
    take_back(run, lane);
    return found;
}

/* Lend the kernel the memory of a long message (MSG_ZEROCOPY in msg_zerocopy.rst); its header goes before, as a copy. */
static ssize_t lend(struct run *run, struct lane *lane, struct step *step) {
    uint8_t header[HEADER_BYTES];
    ssize_t sent;
    if (lane->moved < HEADER_BYTES) {
        write_header(run, step, header);
        sent = send(lane->connection->socket, header + lane->moved, HEADER_BYTES - lane->moved, MSG_NOSIGNAL | MSG_MORE);
        if (sent < 0)
            return sent;
        lane->moved += sent;
        lane->connection->sent_bytes += sent;
        lane->connection->cut_short = 1;
        if (lane->moved < HEADER_BYTES)
            return 0;
    }
    uint64_t at = lane->moved - HEADER_BYTES, rest = step->num_bytes - at;
    sent = send(lane->connection->socket, step->view + at, rest, MSG_NOSIGNAL | MSG_ZEROCOPY);
    if (sent >= 0)
        step->arrived = ++lane->connection->num_zero_copy;
    else if (errno == ENOBUFS) /* too many are out already */
        sent = send(lane->connection->socket, step->view + at, rest, MSG_NOSIGNAL);
    return sent;
}

/* Interfaces take 64 KiB at once, headers counted. What is last and hardly longer leaves in even pieces, so that the first
 * is on its way while the next is copied, and no short rest waits alone until a shaper has been paid for all before it. */
static uint64_t cut_evenly(struct msghdr *message, uint64_t wanted) {
    uint64_t num_pieces = (wanted + SUPER_FRAME_BYTES - 1) / SUPER_FRAME_BYTES, left = (wanted + num_pieces - 1) / num_pieces;
    uint64_t piece = left;
    for (size_t each = 0; each < message->msg_iovlen; each++) {
        struct iovec *part = &message->msg_iov[each];
        if (part->iov_len >= left) {
            part->iov_len = left;
            message->msg_iovlen = each + 1;
        }
        left -= part->iov_len;
    }
    return piece;
}

/* Hand the kernel what is ready. */
static int send_ready(struct run *run, struct lane *lane, int *progress) {
    struct iovec pieces[2 * MAX_GATHERED];
    uint8_t headers[MAX_GATHERED][HEADER_BYTES];
    struct msghdr message = {.msg_iov = pieces};
    uint64_t wanted = 0, moved = lane->moved;
    uint32_t each;
    for (each = 0; each < MAX_GATHERED && lane->next + each < lane->num_steps && wanted < GATHER_BYTES; each++) {
        const struct step *step = step_at(run, lane, lane->next + each);
        if (step->waiting || (run->zero_copy_bytes && step->num_bytes >= run->zero_copy_bytes))
            break;
        if (moved < HEADER_BYTES) {
            write_header(run, step, headers[each]);
            pieces[message.msg_iovlen++] = (struct iovec){headers[each] + moved, HEADER_BYTES - moved};
            pieces[message.msg_iovlen++] = (struct iovec){step->view, step->num_bytes};
        } else {
            uint64_t at = moved - HEADER_BYTES;
            pieces[message.msg_iovlen++] = (struct iovec){step->view + at, step->num_bytes - at};
        }
        wanted += HEADER_BYTES + step->num_bytes - moved;
        moved = 0;
    }
    struct step *first = step_at(run, lane, lane->next);
    ssize_t sent;
    if (wanted) {
        if (lane->next + each == lane->num_steps && wanted > SUPER_FRAME_BYTES && wanted <= LAST_BYTES)
            wanted = cut_evenly(&message, wanted);
        sent = sendmsg(lane->connection->socket, &message, MSG_NOSIGNAL);
    } else if (first->waiting) {
        return DONE;
    } else {
        sent = lend(run, lane, first);
        wanted = HEADER_BYTES + first->num_bytes - lane->moved;
    }
    if (sent < 0) {
        if (errno == EAGAIN)
            lane->blocked = 1;
        else if (errno != EINTR)
            return lost(run, lane, errno);
        *progress |= errno == EINTR;
        return DONE;
    }
    lane->blocked = (uint64_t)sent < wanted;
    lane->connection->sent_bytes += sent;
    lane->moved_ns = now_ns();
    *progress = 1;
    lane->moved += sent;
    while (lane->next < lane->num_steps) {
        struct step *step = step_at(run, lane, lane->next);
        uint64_t whole = HEADER_BYTES + step->num_bytes;
        if (lane->moved < whole || step->waiting)
            break;
        lane->moved -= whole;
        lane->next++;
        if (!step->arrived)
            finish(run, step);
    }
    if (lane->connection->num_zero_copy) /* its last part may have left as a copy, and the ends of the others be here */
        take_back(run, lane);
    lane->connection->cut_short = lane->moved > 0;
    return DONE;
}

/* Nothing to read until epoll says so: when the rest of the header is there, or of the message. Not the whole message at
 * once, for what comes instead may be shorter, unless an earlier one has shown that the peer follows our schedule. */
static void await(struct run *run, struct lane *lane, const struct step *step) {
    int whole = lane->moved >= HEADER_BYTES || lane->agreed;
    uint64_t wanted = (whole ? HEADER_BYTES + step->num_bytes : HEADER_BYTES) - lane->moved;
    uint32_t low_water = wanted < run->low_water_bytes ? (uint32_t)wanted : run->low_water_bytes;
    lane->blocked = 1;
    if (low_water != lane->connection->low_water) {
        int value = (int)low_water;
        if (!setsockopt(lane->connection->socket, SOL_SOCKET, SO_RCVLOWAT, &value, sizeof value))
            lane->connection->low_water = low_water;
    }
}

/* Take what the kernel has of the message under way, a piece that stays in the cache until it is added. */
static int receive_ready(struct run *run, struct lane *lane, int *progress) {
    struct step *step = step_at(run, lane, lane->next);
    if (step->kind == REDUCE ? lane->next - lane->oldest >= run->window : step->waiting)
        return DONE;
    uint64_t before = lane->moved, here = before < HEADER_BYTES ? 0 : before - HEADER_BYTES;
    uint64_t length = step->num_bytes - here;
    uint8_t *to = step->kind == REDUCE ? slot(run, lane, step) + (here - lane->added) : step->view + here;
    if (step->kind == REDUCE && length > PIECE_BYTES)
        length = PIECE_BYTES;
    struct iovec pieces[2] = {{lane->header, 0}, {to, length}};
    if (before < HEADER_BYTES)
        pieces[0] = (struct iovec){lane->header + before, HEADER_BYTES - before};
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 2};
    uint64_t wanted = pieces[0].iov_len + length;
    ssize_t got = recvmsg(lane->connection->socket, &message, 0);
    if (got < 0) {
        int error = errno;
        if (error == EAGAIN)
            await(run, lane, step);
        else if (error != EINTR)
            return lost(run, lane, error);
        *progress |= error == EINTR;
        return DONE;
    }
    if (got == 0)
        return lost(run, lane, 0);
    lane->moved += got;
    lane->connection->received_bytes += got;
    lane->moved_ns = now_ns();
    *progress = 1;
    if (before < HEADER_BYTES && lane->moved >= HEADER_BYTES) {
        uint8_t expected[HEADER_BYTES];
        write_header(run, step, expected);
        if (memcmp(expected, lane->header, HEADER_BYTES)) {
            run->failed_peer = (int32_t)(lane - run->lanes);
            return MISMATCH;
        }
        lane->agreed = run->same_schedule;
    }
    if (lane->moved < HEADER_BYTES) {
        /* Of one that has ended the rest is here already, and epoll will say nothing more. */
        if (!lane->connection->ending)
            await(run, lane, step);
        return DONE;
    }
    here = lane->moved - HEADER_BYTES;
    if (step->kind == REDUCE && !step->waiting) {
        uint8_t *from = slot(run, lane, step);
        uint64_t ready = here - lane->added, rest = ready % run->element_bytes;
        combine(run->type, run->reduction, step->view + lane->added, from, ready - rest);
        memmove(from, from + ready - rest, rest);
        lane->added += ready - rest;
    }
    if (here < step->num_bytes) {
        if ((uint64_t)got < wanted && !lane->connection->ending)
            await(run, lane, step);
        return DONE;
    }
    lane->moved = 0;
    lane->next++;
    if (step->kind == REDUCE && step->waiting) {
        step->arrived = 1; /* whole, and nothing of it was added: it waited all the time */
        return DONE;
    }
    lane->added = 0;
    finish(run, step);
    return DONE;
}

/* Wait for the kernel to have news. */
static int wait_for_news(struct run *run) {
    struct epoll_event events[MAX_EVENTS];
    run->num_ended = 0;
    int64_t left_ns = run->operands.deadline_ns - now_ns();
    if (left_ns <= 0)
        return LATE;
    int64_t left_ms = left_ns / 1000000 + 1;
    int found = epoll_wait(run->epoll, events, MAX_EVENTS, left_ms > LOOK_MS ? LOOK_MS : (int)left_ms);
    int outcome = found <= 0 ? WOKEN : DONE; /* a signal that came just before the wait is found at the next look */
    for (int each = 0; each < found; each++) {
        if (events[each].data.fd == run->wake)
            outcome = WOKEN;
        for (uint32_t number = 0; number < run->num_lanes; number++) {
            struct lane *lane = &run->lanes[number];
            if (run->zero_copy_bytes && lane->sends && lane->connection->socket == events[each].data.fd &&
                events[each].events & EPOLLERR && hear_ends(run, lane))
                events[each].events &= ~(uint32_t)EPOLLERR; /* that was no error */
            if (lane->connection->socket == events[each].data.fd &&
                events[each].events & (lane->sends ? EPOLLOUT | EPOLLERR | EPOLLHUP : EPOLLIN | EPOLLRDHUP | EPOLLERR | EPOLLHUP))
                lane->blocked = 0;
        }
    }
    for (int each = 0; each < found; each++)
        if (events[each].data.fd != run->wake && events[each].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
            run->ended[run->num_ended++] = events[each].data.fd;
    if (run->num_ended)
        return ENDING;
    return outcome;
}

/* Make everything ready for a run of the schedule. */
static void begin_schedule(struct run *run) {
    int64_t begun_ns = now_ns();
    memcpy(run->steps, run->schedule, run->num_steps * sizeof *run->steps);
    for (uint32_t number = 0; number < run->num_steps; number++) {
        run->steps[number].view += run->operands.bases[run->buffers[2 * number]];
        run->steps[number].addend += run->operands.bases[run->buffers[2 * number + 1]];
    }
    for (uint32_t number = 0; number < run->num_lanes; number++) {
        struct lane *lane = &run->lanes[number];
        lane->moved = 0;
        lane->moved_ns = begun_ns;
        lane->next = lane->oldest = lane->blocked = lane->agreed = 0;
        lane->added = 0;
        lane->connection->num_completed = lane->connection->num_notified = lane->connection->num_zero_copy;
    }
    run->num_left = run->num_steps;
    run->first_ns = 0;
    for (uint32_t number = 0; number < run->num_steps; number++)
        if (run->steps[number].kind == ADD && !run->steps[number].waiting && !run->steps[number].done)
            add_whole(run, &run->steps[number]);
}

/* All of it, or as far as it goes without the caller. */
int resume(struct run *run) {
    while (run->num_left) {
        int progress = 0;
        for (uint32_t number = 0; number < run->num_lanes; number++) {
            struct lane *lane = &run->lanes[number];
            if (lane->blocked || lane->next == lane->num_steps)
                continue;
            int outcome = lane->sends ? send_ready(run, lane, &progress) : receive_ready(run, lane, &progress);
            if (outcome != DONE)
                return outcome;
        }
        if (!progress && run->num_left) {
            int outcome = wait_for_news(run);
            if (outcome != DONE)
                return outcome;
        }
    }
    return DONE;
}

/* A run with those operands: all of it, or as far as it goes without the caller, who may look into what is the matter and
 * go on. */
int run_schedule(struct run *run) {
    uint32_t written = (uint32_t)run->operands.sequence;
    memcpy(run->header + SEQUENCE_AT, &written, sizeof written);
    run->sequence = run->operands.sequence;
    begin_schedule(run);
    return resume(run);
}
