/*
 * The stream that goes out: what is under way, what was lost, what travels next.
 *
 * Packets are numbered as in QUIC (RFC 9000): a number is never used twice, so an acknowledgement is never ambiguous, and
 * what is lost travels again under a new number. Everything is counted in runs, packets with consecutive numbers and
 * consecutive bytes, since the kernel moves those together (UDP_SEGMENT in udp(7)).
 */
#ifndef UDP_OUTGOING_H
#define UDP_OUTGOING_H

#include "ranges.h"
#include "wire.h"

enum { PACKET_THRESHOLD = 3,
       FEW_PACKETS = 16, /* fewer after a rest are too short a burst to judge a rate by */
       NO_TOKEN = -1 };

/* One to send. */
struct departing {
    uint64_t start, end;
    const uint8_t *payload;
    uint8_t *copy; /* the payload's, where it is our own; else NULL */
    int64_t token; /* what completes when all of it is acknowledged; NO_TOKEN where that has been said */
    uint8_t frame[FRAME_BYTES];
};
DEFINE_QUEUE(departures, struct departing)

/* Packets with consecutive numbers that carry consecutive bytes of one message. */
struct run {
    uint64_t first, offset;
    uint32_t num_packets, num_bytes;
    double sent_s;
    uint32_t after_rest; /* whether so little was under way that the network may have had nothing to do */
    uint32_t saturated;  /* whether the network, and not the application, held the sender back */
};
DEFINE_QUEUE(runs, struct run)

/* Bytes of one message, by offsets in the stream. */
struct piece {
    uint64_t offset, end;
};
DEFINE_QUEUE(pieces, struct piece)

/* What an acknowledgement has taken from what was under way. */
struct taken {
    double sent_s; /* of the newest run */
    uint32_t saturated;
    uint32_t num_packets;
    uint32_t holds_largest; /* whether the largest number that it names is among them */
    uint32_t app_limited;   /* whether the network may have been idle before any of them, for want of data */
};

struct outgoing {
    uint64_t next_number;
    uint64_t limit; /* how far the peer lets the stream go */
    double loss_s;  /* when what is under way longest has to be looked at again; infinity: never */
    uint64_t payload_bytes;
    int64_t retransmitted_bytes; /* less than 0 where the kernel had no room for fresh bytes, until these have left */
    uint64_t delivered_bytes;
    uint32_t packet_bytes;
    uint32_t num_under_way; /* packets */
    struct tokens *completions; /* of messages that have arrived */
    uint64_t end, busy_from; /* where in the stream it was last idle */
    uint64_t next_offset;
    int64_t largest_acknowledged;
    uint32_t num_sent_whole; /* of the messages, the first so many, whose last byte has been sent once */
    uint32_t num_pending;    /* messages with a token */
    struct departures messages; /* not all acknowledged */
    struct runs sent, kept;
    struct pieces lost;
    struct ranges acknowledged;
};

void outgoing_begin(struct outgoing *o, uint32_t packet_bytes, struct tokens *completions) {
    *o = (struct outgoing){.packet_bytes = packet_bytes, .completions = completions, .limit = ASIDE_BYTES,
                           .loss_s = INFINITY, .largest_acknowledged = -1};
}

void outgoing_free(struct outgoing *o) {
    for (uint32_t index = 0; index < o->messages.num; index++) free(departures_at(&o->messages, index)->copy);
    departures_free(&o->messages);
    runs_free(&o->sent);
    runs_free(&o->kept);
    pieces_free(&o->lost);
    free(o->acknowledged.items);
}

/* Whether the peer has acknowledged everything. */
int outgoing_delivered(const struct outgoing *o) { return o->messages.num == 0; }

/* Whether anything is under way, lost or not yet sent. */
int outgoing_unfinished(const struct outgoing *o) {
    return o->sent.num > 0 || o->lost.num > 0 || o->messages.num > o->num_sent_whole;
}

/* Posted and not known to have arrived without a gap. */
static uint64_t unacknowledged_bytes(const struct outgoing *o) { return o->end - ranges_prefix(&o->acknowledged); }

/* The frame header of the first message whose token has not completed, or NULL. */
static const uint8_t *outgoing_first_pending(const struct outgoing *o) {
    if (o->num_pending == 0) return NULL;
    for (uint32_t index = 0; index < o->messages.num; index++)
        if (departures_at(&o->messages, index)->token != NO_TOKEN) return departures_at(&o->messages, index)->frame;
    return NULL;
}

/* Queue a message. The payload may change once the token completes; without one, at once. */
void outgoing_post(struct outgoing *o, const uint8_t *frame, const uint8_t *payload, uint64_t num_bytes, int64_t token) {
    if (!outgoing_unfinished(o)) o->busy_from = o->end;
    struct departing *message = departures_append(&o->messages);
    *message = (struct departing){o->end, o->end + FRAME_BYTES + num_bytes, payload, NULL, token, {0}};
    memcpy(message->frame, frame, FRAME_BYTES);
    if (token == NO_TOKEN && num_bytes > 0) {
        message->payload = message->copy = enough(malloc(num_bytes));
        memcpy(message->copy, payload, num_bytes);
    }
    o->num_pending += token != NO_TOKEN;
    o->end = message->end;
}

static uint32_t packets_of(const struct runs *runs) {
    uint32_t num_packets = 0;
    for (uint32_t index = 0; index < runs->num; index++) num_packets += runs_at(runs, index)->num_packets;
    return num_packets;
}

/* Forget messages whose token is still out; those before them are delivered. Returns where the stream ends. */
uint64_t outgoing_give_up(struct outgoing *o) {
    struct departures *messages = &o->messages;
    uint32_t num_kept = 0;
    while (num_kept < messages->num && departures_at(messages, num_kept)->token == NO_TOKEN) num_kept++;
    if (num_kept < messages->num) o->end = departures_at(messages, num_kept)->start;
    for (uint32_t index = num_kept; index < messages->num; index++) free(departures_at(messages, index)->copy);
    messages->num = num_kept;
    if (o->num_sent_whole > num_kept) o->num_sent_whole = num_kept;
    o->num_pending = 0;
    o->kept.num = o->kept.head = 0;
    for (uint32_t index = 0; index < o->sent.num; index++)
        if (runs_at(&o->sent, index)->offset < o->end) *runs_append(&o->kept) = *runs_at(&o->sent, index);
    runs_replace(&o->sent, o->sent.num, &o->kept);
    o->num_under_way = packets_of(&o->sent);
    struct pieces lost = {0};
    for (uint32_t index = 0; index < o->lost.num; index++)
        if (pieces_at(&o->lost, index)->offset < o->end) *pieces_append(&lost) = *pieces_at(&o->lost, index);
    pieces_free(&o->lost);
    o->lost = lost;
    return o->end;
}

/* --- what has come ------------------------------------------------------------------------------------------------ */

/* Packets first..end-1 of a run. */
static struct run part_of(const struct outgoing *o, const struct run *run, uint64_t first, uint64_t end) {
    struct run part = *run;
    uint64_t skipped = (first - run->first) * o->packet_bytes, most = (end - first) * o->packet_bytes;
    part.first = first, part.num_packets = end - first, part.offset = run->offset + skipped;
    part.num_bytes = most < run->num_bytes - skipped ? most : run->num_bytes - skipped;
    return part;
}

static void keep(struct outgoing *o, const struct run *run, uint64_t first, uint64_t end) {
    if (first < end) *runs_append(&o->kept) = part_of(o, run, first, end);
}

static void complete_departures(struct outgoing *o) {
    uint64_t prefix = ranges_prefix(&o->acknowledged);
    while (o->messages.num > 0 && departures_at(&o->messages, 0)->end <= prefix) {
        struct departing *message = departures_at(&o->messages, 0);
        if (message->token != NO_TOKEN) {
            *tokens_append(o->completions) = message->token;
            o->num_pending--;
        }
        free(message->copy);
        departures_drop(&o->messages, 1);
        o->num_sent_whole--;
    }
}

/* These numbers (rising ranges) have arrived. Returns what is news of it: of no packets, nothing. */
struct taken outgoing_on_acknowledged(struct outgoing *o, const struct named *rising, uint32_t num_ranges,
                                      int64_t largest) {
    struct taken taken = {0};
    uint32_t split = 0, index = 0;
    if (largest > o->largest_acknowledged) o->largest_acknowledged = largest;
    o->kept.num = o->kept.head = 0;
    for (; split < o->sent.num; split++) {
        const struct run *run = runs_at(&o->sent, split);
        if ((int64_t)run->first > largest) break;
        int64_t at = run->first, end = at + run->num_packets;
        while (index < num_ranges && rising[index].last < at) index++;
        for (uint32_t look = index; at < end && look < num_ranges && rising[look].first < end; look++) {
            int64_t first = at > rising[look].first ? at : rising[look].first;
            int64_t last = end - 1 < rising[look].last ? end - 1 : rising[look].last;
            keep(o, run, at, first);
            struct run part = part_of(o, run, first, last + 1);
            o->delivered_bytes += ranges_add(&o->acknowledged, part.offset, part.offset + part.num_bytes);
            taken.num_packets += part.num_packets;
            taken.sent_s = run->sent_s, taken.saturated = run->saturated;
            taken.holds_largest |= last == largest, taken.app_limited |= run->after_rest;
            at = last + 1;
        }
        keep(o, run, at, end);
    }
    if (taken.num_packets == 0) return taken;
    runs_replace(&o->sent, split, &o->kept);
    o->num_under_way -= taken.num_packets;
    complete_departures(o);
    return taken;
}

/* All up to there has arrived, under whichever numbers; no more than was sent. */
void outgoing_on_received(struct outgoing *o, uint64_t prefix) {
    if (prefix == 0) return;
    o->delivered_bytes += ranges_add(&o->acknowledged, 0, prefix);
    o->kept.num = o->kept.head = 0;
    for (uint32_t index = 0; index < o->sent.num; index++) {
        const struct run *run = runs_at(&o->sent, index);
        uint64_t known = prefix > run->offset ? prefix - run->offset : 0;
        uint64_t num_known = known < run->num_bytes ? known / o->packet_bytes : run->num_packets;
        keep(o, run, run->first + num_known, run->first + run->num_packets);
    }
    runs_replace(&o->sent, o->sent.num, &o->kept);
    o->num_under_way = packets_of(&o->sent);
    complete_departures(o);
}

/* RFC 9002, 6.1: three later packets were acknowledged, or any later one and it is so long ago. Returns whether any was
 * lost. */
int outgoing_detect_loss(struct outgoing *o, double patience_s, double now_s) {
    int any_lost = 0;
    uint32_t split = 0;
    o->loss_s = INFINITY;
    o->kept.num = o->kept.head = 0;
    for (; split < o->sent.num; split++) {
        const struct run *run = runs_at(&o->sent, split);
        int64_t first = run->first, end = first + run->num_packets, lost_end = end;
        if (first > o->largest_acknowledged) break;
        if (run->sent_s + patience_s > now_s) {
            int64_t overtaken_end = o->largest_acknowledged - PACKET_THRESHOLD + 1;
            lost_end = overtaken_end < first ? first : overtaken_end < end ? overtaken_end : end;
        }
        if (lost_end > first) {
            struct run lost = part_of(o, run, first, lost_end);
            o->num_under_way -= lost.num_packets;
            *pieces_append(&o->lost) = (struct piece){lost.offset, lost.offset + lost.num_bytes};
            any_lost = 1;
        }
        if (lost_end < end) {
            keep(o, run, lost_end, end);
            o->loss_s = fmin(o->loss_s, run->sent_s + patience_s);
        }
    }
    runs_replace(&o->sent, split, &o->kept);
    return any_lost;
}

/* --- what to send ------------------------------------------------------------------------------------------------- */

/* What should travel next; it is not taken yet. Returns 0 where there is nothing. */
int outgoing_wanted(struct outgoing *o, struct piece *wanted) {
    uint64_t prefix = ranges_prefix(&o->acknowledged);
    for (; o->lost.num > 0; pieces_drop(&o->lost, 1)) {
        *wanted = *pieces_at(&o->lost, 0);
        if (wanted->end > prefix && !ranges_cover(&o->acknowledged, wanted->offset, wanted->end)) return 1;
    }
    if (o->messages.num == o->num_sent_whole) return 0;
    const struct departing *message = departures_at(&o->messages, o->num_sent_whole);
    wanted->offset = o->next_offset > message->start ? o->next_offset : message->start;
    wanted->end = message->end;
    if (o->limit < wanted->end) {
        uint64_t room = o->limit > wanted->offset ? o->limit - wanted->offset : 0;
        wanted->end = wanted->offset + room / o->packet_bytes * o->packet_bytes;
    }
    return wanted->end > wanted->offset;
}

/* At most so many packets of what `wanted` has just said, as sent now; of `room` that there was. */
struct run outgoing_take(struct outgoing *o, struct piece wanted, uint32_t max_packets, double now_s, int64_t room,
                         int after_rest) {
    uint64_t most = (uint64_t)max_packets * o->packet_bytes, finish = wanted.end;
    if (finish - wanted.offset > most) finish = wanted.offset + most;
    uint32_t num_bytes = finish - wanted.offset, num_packets = (num_bytes + o->packet_bytes - 1) / o->packet_bytes;
    if (o->lost.num > 0) {
        o->retransmitted_bytes += num_bytes;
        if (finish < wanted.end) pieces_at(&o->lost, 0)->offset = finish;
        else pieces_drop(&o->lost, 1);
    } else {
        o->payload_bytes += num_bytes;
        o->next_offset = finish;
        if (finish == departures_at(&o->messages, o->num_sent_whole)->end) o->num_sent_whole++;
    }
    /* A few packets after a rest say nothing of the network, however many such bursts an interval holds. */
    int is_long = finish >= o->busy_from + (uint64_t)FEW_PACKETS * o->packet_bytes;
    struct piece more;
    int saturated = is_long && (room <= (int64_t)num_packets || outgoing_wanted(o, &more));
    struct run run = {o->next_number, wanted.offset, num_packets, num_bytes, now_s, after_rest, saturated};
    o->next_number += num_packets;
    *runs_append(&o->sent) = run;
    o->num_under_way += num_packets;
    return run;
}

/* Of the run that `take` has just given only the first packets were sent. */
void outgoing_take_back(struct outgoing *o, const struct run *run, uint32_t num_sent) {
    o->sent.num--;
    if (num_sent > 0) {
        struct run part = part_of(o, run, run->first, run->first + num_sent);
        *runs_append(&o->sent) = part;
    }
    struct run back = part_of(o, run, run->first + num_sent, run->first + run->num_packets);
    o->num_under_way -= back.num_packets;
    *pieces_prepend(&o->lost) = (struct piece){back.offset, back.offset + back.num_bytes};
    o->retransmitted_bytes -= back.num_bytes;
}

/* So many packets of what is under way longest are wanted again. Returns 0 when nothing is. */
int outgoing_repeat_oldest(struct outgoing *o, uint32_t num_packets) {
    for (; o->sent.num > 0; runs_drop(&o->sent, 1)) {
        const struct run *run = runs_at(&o->sent, 0);
        if (!ranges_cover(&o->acknowledged, run->offset, run->offset + run->num_bytes)) {
            uint64_t most = (uint64_t)num_packets * o->packet_bytes;
            *pieces_prepend(&o->lost) =
                (struct piece){run->offset, run->offset + (most < run->num_bytes ? most : run->num_bytes)};
            return 1;
        }
        o->num_under_way -= run->num_packets; /* another copy of it has arrived */
    }
    return 0;
}

/* The message that those bytes are of; they must not all be acknowledged. */
static const struct departing *message_of(const struct outgoing *o, uint64_t offset) {
    uint32_t low = 0, high = o->messages.num - 1;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (departures_at(&o->messages, middle)->end <= offset) low = middle + 1; else high = middle;
    }
    return departures_at(&o->messages, low);
}

#endif
