/*
 * One end of a reliable connection: what it must send, when, and what has come. No sockets, no clock: whoever calls says
 * what has come and what time it is (seconds of the protocol's clock), and sends what there is to send.
 *
 * Two streams of bytes, one each way (outgoing.h, incoming.h). A stream is the messages in the order they were posted, each
 * behind its frame header; a packet carries bytes of one message. Here is what both have to do with each other, with the
 * time and with the network: how much may be under way and how fast (window and pace), round trips, loss by time as in RFC
 * 9002 (9/8 of a round trip has passed, a probe follows where nothing comes), pings, graceful close.
 */
#ifndef UDP_CONNECTION_H
#define UDP_CONNECTION_H

#include "incoming.h"
#include "outgoing.h"
#include "pacing.h"

enum { MAX_RUN_PACKETS = 176,            /* four of the kernel's largest datagrams */
       COPY_BYTES = 64 * 1024,           /* messages up to this length are copied, and may change once they are posted... */
       MAX_COPIED_BYTES = 1024 * 1024 }; /* ...as long as no more than this waits for one peer */
static const double TIME_THRESHOLD = 9.0 / 8;
static const double GRANULARITY_S = 1e-3;
static const double TAKE_BACK_S = 5e-4;
/* How much faster than a window each round trip a sender without a rate of its own may go. */
static const double WINDOW_GAIN = 2.0;
/* A peer that is silent for so long while something is expected of it is sent a PING. */
static const double PING_S = 0.5;

/* RFC 6298's timer; its bounds are those of switch_agg/round_trip.py, which also says why. */
struct round_trip {
    double min_timeout_s, max_timeout_s;
    double timeout_s, smoothed_s, variation_s, least_s;
    uint32_t measured, zero;
};

void round_trip_sample(struct round_trip *timer, double round_trip_s) {
    if (!timer->measured) {
        timer->measured = 1;
        timer->smoothed_s = timer->least_s = round_trip_s, timer->variation_s = round_trip_s / 2;
    } else {
        timer->variation_s += (fabs(timer->smoothed_s - round_trip_s) - timer->variation_s) / 4;
        timer->smoothed_s += (round_trip_s - timer->smoothed_s) / 8;
        timer->least_s = fmin(timer->least_s, round_trip_s);
    }
    double timeout_s = timer->smoothed_s + fmax(GRANULARITY_S, 4 * timer->variation_s);
    timer->timeout_s = fmin(timer->max_timeout_s, fmax(timer->min_timeout_s, timeout_s));
}

/* How long to wait for the answer to the attempts-th transmission: doubles with each, up to a limit. */
double round_trip_after_attempts_s(const struct round_trip *timer, uint32_t attempts) {
    return fmin(timer->max_timeout_s, timer->timeout_s * exp2(attempts - 1 < 16 ? attempts - 1 : 16));
}

/* Tells an adaptive window of packets that came back, a round trip each of which is negative where it is not known, or of
 * loss where there are none; returns the window, in packets. */
typedef uint32_t (*window_policy)(double round_trip_s, uint32_t num_packets, uint32_t marked, double now_s);

/* What Python reads of a connection, and what it sets when it opens one. */
struct connection {
    uint32_t local, remote; /* the numbers that the ends chose for the connection */
    window_policy policy;   /* NULL: the window is fixed */
    struct pacer *pacer;
    uint32_t window; /* packets */
    uint32_t wire_bytes; /* of a full packet */
    uint32_t restarted; /* whether the other end says that it knows nothing of this connection */
    uint32_t leaves, leave_answered;
    uint32_t peer_leaves;
    uint32_t farewell_after, farewell_lost; /* what the peer said as it left; 1 + the rank that it has lost, or 0 */
    uint32_t our_after, our_lost;           /* the same that we say */
    uint64_t peer_end, our_end;             /* where the streams end then */
    uint64_t acknowledgement_bytes, num_rejected;
    double heard_s, pinged_s, armed_s, leave_s; /* armed: since when the probe timer runs; infinity: it does not */
    double latest_s;
    uint32_t marks_seen, probes_unanswered, num_probes, num_waiting_bytes;
    uint8_t *waiting; /* datagrams without data that are to be sent, each behind its length in two bytes */
    uint64_t waiting_capacity;
    struct arrival arrival; /* packets that have come and that nobody has heard of; none of them: nothing */
    struct round_trip round_trip;
    struct pace pace;
    struct meter meter;
    struct outgoing outgoing;
    struct incoming incoming;
};

/* How a connection is to be. */
struct settings {
    uint32_t local, remote, packet_bytes, window;
    window_policy policy;
    struct pacer *pacer;
    struct tokens *completions;
    uint32_t pace_kind, zero;
    double rate_bps; /* of a fixed pace */
    double initial_timeout_s, min_timeout_s, max_timeout_s;
    double now_s;
};

struct connection *connection_open(const struct settings *settings) {
    struct connection *c = enough(calloc(1, sizeof *c));
    c->local = settings->local, c->remote = settings->remote;
    c->policy = settings->policy, c->window = settings->window, c->pacer = settings->pacer;
    c->wire_bytes = settings->packet_bytes + OVERHEAD_BYTES;
    c->heard_s = c->pinged_s = settings->now_s, c->armed_s = INFINITY;
    c->round_trip.timeout_s = settings->initial_timeout_s;
    c->round_trip.min_timeout_s = settings->min_timeout_s, c->round_trip.max_timeout_s = settings->max_timeout_s;
    c->pace.kind = settings->pace_kind, c->pace.fixed_bps = settings->rate_bps;
    outgoing_begin(&c->outgoing, settings->packet_bytes, settings->completions);
    incoming_begin(&c->incoming, settings->completions, settings->now_s);
    return c;
}

void connection_close(struct connection *c) {
    outgoing_free(&c->outgoing);
    incoming_free(&c->incoming);
    points_free(&c->meter.points);
    found_rates_free(&c->pace.best);
    free(c->waiting);
    free(c);
}

/* Tokens that nobody takes any more. */
void completions_free(struct tokens *completions) { tokens_free(completions); }

/* --- requests to it ----------------------------------------------------------------------------------------------- */

/* Queue a message. Returns whether it was copied, and its token has completed with that. */
int connection_post(struct connection *c, const uint8_t *frame, const uint8_t *payload, uint64_t num_bytes,
                    int64_t token) {
    int copied = num_bytes <= COPY_BYTES && unacknowledged_bytes(&c->outgoing) <= MAX_COPIED_BYTES;
    outgoing_post(&c->outgoing, frame, payload, num_bytes, copied ? NO_TOKEN : token);
    if (copied) *tokens_append(c->outgoing.completions) = token;
    return copied;
}

/* Use no memory any more of messages whose token is still out: those to send are given up, those before them delivered.
 * Returns where the stream ends. */
uint64_t connection_let_go(struct connection *c) {
    incoming_let_go(&c->incoming);
    return outgoing_give_up(&c->outgoing);
}

/* Begin a graceful close: messages whose token is still out are let go of. CLOSE also says what has come: a peer that
 * hears of the end before it knows that takes its message for lost. */
void connection_leave(struct connection *c, uint32_t after, uint32_t lost, double now_s) {
    c->leaves = 1, c->our_after = after, c->our_lost = lost, c->leave_s = now_s;
    c->our_end = connection_let_go(c);
}

/* Whether the peer has left and all that it sent before has come. */
static int has_farewell(const struct connection *c) {
    return c->peer_leaves && ranges_prefix(&c->incoming.received) >= c->peer_end;
}

/* The frame header of the message that is waited for, an expected one before one to send; NULL: none is. */
const uint8_t *connection_first_pending(const struct connection *c) {
    const struct arrivals *expected = &c->incoming.messages;
    return expected->num > 0 ? arrivals_at(expected, 0)->expected : outgoing_first_pending(&c->outgoing);
}

/* --- how much and how fast ---------------------------------------------------------------------------------------- */

static double flight_bytes_of(const struct connection *c) { return (double)c->outgoing.num_under_way * c->wire_bytes; }

/* Packets that window and pace let under way now. */
static int64_t room_packets(const struct connection *c) {
    int64_t room = c->window;
    double allowed = floor(pace_flight_bytes(&c->pace) / c->wire_bytes);
    if (allowed < (double)room) room = (int64_t)allowed;
    return room - c->outgoing.num_under_way;
}

/* The pace's rate; without one, the window's packets spread over a round trip, with room for it to grow; 0 before the
 * first. */
static double rate_bps_of(const struct connection *c) {
    double rate_bps = pace_rate_bps(&c->pace);
    if (rate_bps > 0.0 || !c->round_trip.measured) return rate_bps;
    return WINDOW_GAIN * c->window * c->wire_bytes * 8 / c->round_trip.smoothed_s;
}

/* How long it can go on sending at its rate without another acknowledgement; infinity: nothing is under way. */
double connection_spare_s(const struct connection *c) {
    uint32_t num_packets = c->outgoing.num_under_way;
    if (num_packets == 0) return INFINITY;
    double rate_bps = rate_bps_of(c);
    int64_t room = room_packets(c);
    if (rate_bps == 0.0) return num_packets <= room ? INFINITY : 0.0; /* before the first round trip */
    return room > 0 ? (double)room * c->wire_bytes * 8 / rate_bps : 0.0;
}

static uint32_t burst_packets(const struct connection *c) {
    double packets = rate_bps_of(c) * BURST_S / 8 / c->wire_bytes;
    if (packets == 0.0 || packets >= MAX_RUN_PACKETS) return MAX_RUN_PACKETS;
    return packets < 1.0 ? 1 : (uint32_t)packets;
}

/* --- what has come ------------------------------------------------------------------------------------------------ */

/* Room for one more datagram without data; control_written() takes it, when it is written. */
static uint8_t *control_room(struct connection *c) {
    if (c->num_waiting_bytes + sizeof(uint16_t) + MAX_CONTROL_BYTES > c->waiting_capacity) {
        c->waiting_capacity = 2 * c->waiting_capacity + 1024;
        c->waiting = enough(realloc(c->waiting, c->waiting_capacity));
    }
    return c->waiting + c->num_waiting_bytes + sizeof(uint16_t);
}

static void control_written(struct connection *c, uint16_t length) {
    memcpy(c->waiting + c->num_waiting_bytes, &length, sizeof length);
    c->num_waiting_bytes += sizeof length + length;
}

static void queue_control(struct connection *c, uint32_t connection, uint32_t number, enum kind kind, uint64_t offset,
                          const void *body, uint16_t num_bytes) {
    control_written(c, write_datagram(control_room(c), connection, number, kind, offset, body, num_bytes));
}

static void ask(struct connection *c, double now_s) {
    c->pinged_s = now_s;
    queue_control(c, c->remote, 0, PING, 0, NULL, 0);
}

/* The probe timer (RFC 9002, 6.2): while anything is under way, or held back by the peer. */
static void arm(struct connection *c, double now_s) {
    c->armed_s = outgoing_unfinished(&c->outgoing) ? now_s : INFINITY;
}

/* An adaptive window hears of it. It is at least 1; an answer of 0 would come from a policy that has failed, and left word. */
static void adapt(struct connection *c, double round_trip_s, uint32_t num_packets, uint32_t marked, double now_s) {
    uint32_t window = c->policy ? c->policy(round_trip_s, num_packets, marked, now_s) : 0;
    if (window > 0) c->window = window;
}

static void detect_loss(struct connection *c, double now_s) {
    double patience_s = fmax(TIME_THRESHOLD * fmax(c->round_trip.smoothed_s, c->latest_s), GRANULARITY_S);
    if (outgoing_detect_loss(&c->outgoing, patience_s, now_s)) adapt(c, -1.0, 0, 0, now_s);
}

/* How packets came through, whole ones on the wire. */
static struct delivery delivery_of(struct connection *c, const struct taken *taken, const struct acknowledged *said) {
    struct delivery delivery =
        meter_on_acknowledged(&c->meter, said->arrived_us, taken->sent_s, c->outgoing.delivered_bytes, said->train_bytes,
                              taken->app_limited, c->round_trip.least_s);
    delivery.rate_bps = taken->saturated ? delivery.rate_bps / c->outgoing.packet_bytes * c->wire_bytes : -1.0;
    return delivery;
}

/* The round trip of the newest packet, without the peer's delay; the pace learns how packets came through. */
static double measure(struct connection *c, const struct taken *taken, const struct acknowledged *said, double now_s) {
    c->latest_s = fmax(now_s - taken->sent_s, 1e-6);
    round_trip_sample(&c->round_trip, c->latest_s);
    double round_trip_s = fmax(c->latest_s - said->delay_us * 1e-6, 1e-6);
    struct delivery delivery = {-1.0, 0.0, 0.0};
    if (c->pace.kind == PROBED_PACE) delivery = delivery_of(c, taken, said);
    pace_on_acknowledged(&c->pace, &delivery, round_trip_s, flight_bytes_of(c), now_s);
    return round_trip_s;
}

static void on_acknowledgement(struct connection *c, const struct header *header, const uint8_t *body, double now_s) {
    struct named ranges[MAX_RANGES];
    struct acknowledged said;
    uint64_t largest = whole_number(header->number, c->outgoing.next_number);
    int num_ranges = read_ranges(body, header->length, largest, &said, ranges, MAX_RANGES);
    if (num_ranges < 0) {
        c->num_rejected++;
        return;
    }
    if (header->offset > c->outgoing.limit) c->outgoing.limit = header->offset;
    if (num_ranges == 0 || largest >= c->outgoing.next_number) return;
    int marked = c->marks_seen < said.marks;
    if (marked) c->marks_seen = said.marks;
    struct taken taken = outgoing_on_acknowledged(&c->outgoing, ranges, num_ranges, largest);
    if (taken.num_packets > 0) {
        c->probes_unanswered = 0;
        double round_trip_s = taken.holds_largest ? measure(c, &taken, &said, now_s) : -1.0;
        adapt(c, round_trip_s, taken.num_packets, marked, now_s);
    }
    detect_loss(c, now_s);
    arm(c, now_s);
}

/* The peer leaves. What it has counts as acknowledged, for no acknowledgement need come after this. */
static void on_close(struct connection *c, const struct header *header, const uint8_t *body, double now_s) {
    struct closing said = {0};
    if (header->length == sizeof said) memcpy(&said, body, sizeof said);
    if (header->length != sizeof said || said.received > c->outgoing.next_offset) {
        c->num_rejected++;
        return;
    }
    c->peer_leaves = 1, c->farewell_after = header->number, c->farewell_lost = said.lost, c->peer_end = header->offset;
    outgoing_on_received(&c->outgoing, said.received);
    arm(c, now_s);
    queue_control(c, c->remote, 0, LEFT, 0, NULL, 0);
}

/* The stream hears what has come of data; before anything else that happens. */
void connection_settle(struct connection *c, double now_s) {
    if (c->arrival.num_packets == 0) return;
    c->heard_s = now_s;
    incoming_on_packets(&c->incoming, &c->arrival, now_s);
    c->arrival.num_packets = 0;
}

/* A datagram without data, or one of another connection. */
static void on_control(struct connection *c, const struct header *header, const uint8_t *body, double now_s) {
    if (header->kind == UNKNOWN_CONNECTION) {
        c->restarted |= header->connection == c->remote;
        return;
    }
    if (header->connection != c->local) {
        c->num_rejected++;
        queue_control(c, header->connection, 0, UNKNOWN_CONNECTION, 0, NULL, 0);
        return;
    }
    c->heard_s = now_s;
    if (header->kind == ACKNOWLEDGEMENT) {
        on_acknowledgement(c, header, body, now_s);
    } else if (header->kind == PING) {
        c->incoming.acknowledge_s = 0.0;
    } else if (header->kind == CLOSE) {
        on_close(c, header, body, now_s);
    } else if (header->kind == LEFT) {
        c->leave_answered = c->leaves;
    } else {
        c->num_rejected++;
    }
}

static void on_data(struct connection *c, const struct header *header, const uint8_t *body, int marked, int joins,
                    double arrived_s, double now_s) {
    if (!incoming_place(&c->incoming, header->offset, body, header->length)) {
        c->num_rejected++;
        return;
    }
    struct arrival *last = &c->arrival;
    int follows = last->num_packets > 0 && last->number + last->num_packets == header->number &&
                  last->offset + last->num_bytes == header->offset && (int)last->marked == marked;
    if (follows && last->num_bytes < UINT32_MAX / 2) {
        last->num_packets++;
        last->num_bytes += header->length;
        last->train_bytes = header->length + (joins ? last->train_bytes : 0);
        last->arrived_s = arrived_s;
        return;
    }
    connection_settle(c, now_s);
    c->arrival = (struct arrival){header->number, 1, header->offset, header->length, header->length, marked, 0, arrived_s};
}

/* That has come, at that time: everything is checked, payload goes to its place. `joins`: the kernel took it in with the one
 * before it. connection_settle() must follow, once for all that has come. */
void connection_receive(struct connection *c, const uint8_t *datagram, uint32_t num_bytes, int marked, int joins,
                        double arrived_s, double now_s) {
    struct header header;
    if (!read_header(datagram, num_bytes, &header)) {
        c->num_rejected++;
        return;
    }
    if (header.kind == DATA && header.connection == c->local) {
        on_data(c, &header, datagram + sizeof header, marked, joins, arrived_s, now_s);
        return;
    }
    connection_settle(c, now_s);
    on_control(c, &header, datagram + sizeof header, now_s);
}

/* --- what to send ------------------------------------------------------------------------------------------------- */

/* The next packets to send now, already counted as sent; returns 0 when there are none or it is too early. */
int connection_next_run(struct connection *c, double now_s, struct run *run) {
    struct piece wanted;
    int probing = c->num_probes > 0;
    if (!probing && !pacer_opens(c->pacer, now_s)) return 0;
    if (!outgoing_wanted(&c->outgoing, &wanted)) return 0;
    int64_t room = room_packets(c), max_packets = 1;
    if (probing) {
        c->num_probes--;
    } else {
        if (room <= 0) return 0;
        max_packets = burst_packets(c);
        if (room < max_packets) max_packets = room;
    }
    int after_rest = flight_bytes_of(c) <= pace_path_bytes(&c->pace);
    *run = outgoing_take(&c->outgoing, wanted, max_packets, now_s, room, after_rest);
    uint64_t num_bytes = run->num_bytes + (uint64_t)run->num_packets * OVERHEAD_BYTES;
    pacer_spend(c->pacer, num_bytes, rate_bps_of(c), now_s);
    c->armed_s = now_s;
    return 1;
}

/* The machine sent only the first packets of the run that connection_next_run() has just given; the others are tried again
 * a little later. */
void connection_take_back(struct connection *c, const struct run *run, uint32_t num_sent, double now_s) {
    outgoing_take_back(&c->outgoing, run, num_sent);
    pacer_pause(c->pacer, now_s + TAKE_BACK_S);
}

/* Where one packet of a run lies: its header, of the frame header what it carries, of the payload the same. */
struct packet {
    struct header header;
    const uint8_t *frame, *payload;
    uint32_t num_frame_bytes, num_payload_bytes;
};

static void find_packet(const struct connection *c, const struct run *run, uint32_t index, struct packet *packet) {
    const struct departing *message = message_of(&c->outgoing, run->offset);
    uint32_t packet_bytes = c->outgoing.packet_bytes, at = index * packet_bytes;
    uint32_t length = run->num_bytes - at < packet_bytes ? run->num_bytes - at : packet_bytes;
    uint64_t begin = run->offset + at - message->start;
    uint32_t of_frame = begin < FRAME_BYTES ? FRAME_BYTES - begin : 0;
    if (of_frame > length) of_frame = length;
    packet->header =
        (struct header){0, c->remote, (uint32_t)(run->first + index), DATA, 0, length, run->offset + at};
    packet->frame = message->frame + (of_frame > 0 ? begin : 0), packet->num_frame_bytes = of_frame;
    packet->num_payload_bytes = length - of_frame;
    packet->payload = packet->num_payload_bytes > 0 ? message->payload + (begin + of_frame - FRAME_BYTES) : NULL;
    uint32_t check = sum((const uint8_t *)&packet->header, sizeof packet->header);
    check += sum(packet->frame, of_frame);
    if (packet->num_payload_bytes > 0) check += sum_at(packet->payload, packet->num_payload_bytes, of_frame & 3);
    packet->header.check = check;
}

/* Datagrams without data that are due, already counted as sent: `waiting` holds them until they are taken. */
static void queue_due_controls(struct connection *c, double now_s) {
    if (now_s >= c->incoming.acknowledge_s) {
        size_t length = incoming_acknowledge(&c->incoming, c->remote, now_s, control_room(c));
        control_written(c, length);
        c->acknowledgement_bytes += length + IP_OVERHEAD_BYTES;
    }
    if (c->leaves && !c->leave_answered && now_s >= c->leave_s) {
        c->leave_s = now_s + c->round_trip.timeout_s;
        struct closing said = {c->our_lost, ranges_prefix(&c->incoming.received)};
        queue_control(c, c->remote, c->our_after, CLOSE, c->our_end, &said, sizeof said);
    }
}

/* The datagram that waits there, whose length is found before it, or NULL; `at` goes on to the next. */
static const uint8_t *next_control(const struct connection *c, uint32_t *at, uint16_t *length) {
    if (*at >= c->num_waiting_bytes) return NULL;
    memcpy(length, c->waiting + *at, sizeof *length);
    const uint8_t *datagram = c->waiting + *at + sizeof *length;
    *at += sizeof *length + *length;
    return datagram;
}

/* The next datagrams to send now, for a driver without sockets: each behind its length in two bytes, those without data
 * before all others, then a run in each call; there is room for MAX_RUN_PACKETS of them. Returns how many bytes; 0: there
 * are none. */
uint64_t connection_transmit(struct connection *c, double now_s, uint8_t *to) {
    uint64_t num_bytes = 0;
    queue_due_controls(c, now_s);
    if (c->num_waiting_bytes > 0) {
        uint64_t most = (uint64_t)MAX_RUN_PACKETS * c->outgoing.packet_bytes;
        uint32_t at = 0, end = 0;
        uint16_t length;
        while (next_control(c, &at, &length) && (at <= most || end == 0)) end = at;
        memcpy(to, c->waiting, end);
        c->num_waiting_bytes -= end;
        memmove(c->waiting, c->waiting + end, c->num_waiting_bytes);
        return end;
    }
    struct run run;
    if (!connection_next_run(c, now_s, &run)) return 0;
    for (uint32_t index = 0; index < run.num_packets; index++) {
        struct packet packet;
        find_packet(c, &run, index, &packet);
        uint16_t length = sizeof packet.header + packet.header.length;
        memcpy(to + num_bytes, &length, sizeof length);
        num_bytes += sizeof length;
        memcpy(to + num_bytes, &packet.header, sizeof packet.header);
        num_bytes += sizeof packet.header;
        memcpy(to + num_bytes, packet.frame, packet.num_frame_bytes);
        num_bytes += packet.num_frame_bytes;
        if (packet.num_payload_bytes > 0) memcpy(to + num_bytes, packet.payload, packet.num_payload_bytes);
        num_bytes += packet.num_payload_bytes;
    }
    return num_bytes;
}

/* --- time --------------------------------------------------------------------------------------------------------- */

static double ping_s(const struct connection *c) { return fmax(c->heard_s, c->pinged_s) + PING_S; }

/* When the probe timer ends. */
static double probe_s(const struct connection *c) {
    return c->armed_s + round_trip_after_attempts_s(&c->round_trip, 1 + c->probes_unanswered) +
           MAX_ACKNOWLEDGEMENT_DELAY_S;
}

/* When connection_expire() wants to be called, or there is something to send. */
double connection_deadline_s(struct connection *c) {
    double found_s = fmin(fmin(ping_s(c), c->incoming.acknowledge_s), c->outgoing.loss_s);
    struct piece wanted;
    if (outgoing_unfinished(&c->outgoing)) {
        found_s = fmin(found_s, isfinite(c->armed_s) ? probe_s(c) : 0.0);
        if (room_packets(c) > 0 && outgoing_wanted(&c->outgoing, &wanted)) found_s = fmin(found_s, c->pacer->next_s);
    }
    return c->leaves && !c->leave_answered ? fmin(found_s, c->leave_s) : found_s;
}

static void probe(struct connection *c, double now_s) {
    struct piece wanted;
    c->probes_unanswered++;
    if (outgoing_repeat_oldest(&c->outgoing, 2)) c->num_probes = 2;
    else if (!outgoing_wanted(&c->outgoing, &wanted)) ask(c, now_s);
    arm(c, now_s);
}

/* The deadline has passed. */
void connection_expire(struct connection *c, double now_s) {
    if (now_s >= c->outgoing.loss_s) detect_loss(c, now_s);
    if (!isfinite(c->armed_s)) {
        arm(c, now_s);
    } else if (now_s >= probe_s(c)) {
        if (outgoing_unfinished(&c->outgoing)) probe(c, now_s);
        else arm(c, now_s);
    }
    if (now_s >= ping_s(c)) ask(c, now_s);
}

#endif
