/*
 * How fast packets came through, by the receiver's clock.
 *
 * Delivery rates as in Cheng et al., draft-cheng-iccrg-delivery-rate-estimation, but between times at which the
 * receiver's kernel took packets in (as draft-smith-quic-receive-ts says them), not between those at which
 * acknowledgements were read: a member that waits for a core reads many at once, and would take that for speed. The
 * longer of the times that sending and arriving took counts, since packets that are held up on the way arrive in lumps as
 * well.
 *
 * A rate says what the network can do only where the network was busy all the time. That is inferred from the time that
 * packets were on their way: they waited in a queue when it is longer than the shortest of late. Both clocks may differ,
 * as long as they go alike.
 */
#ifndef UDP_DELIVERY_H
#define UDP_DELIVERY_H

#include <math.h>

#include "queue.h"

/* Over less, a link that lets a burst pass after a rest looks faster than it is, and one that a timer drives too. */
const double MIN_INTERVAL_S = 8e-3;
/* What packets wait without a queue that stands: senders hand over a millisecond's worth at once. */
const double QUEUE_S = 2e-3;
/* How long the shortest of times is believed. */
static const double LIFE_S = 10.0;

/* What an acknowledgement says of the network. */
struct delivery {
    double rate_bps; /* of payload, over an interval; negative where that is too short yet */
    double busy_s;   /* how long, since the acknowledgement before, the network has been seen to be busy all the time */
    double queue_s;  /* how much longer the newest packet was on its way than the fastest of late */
};

struct point {
    double arrived_s, sent_s;
    uint64_t delivered_bytes;
    uint32_t train_bytes;
    uint32_t queued;
};
DEFINE_QUEUE(points, struct point)

/* The shortest of late of what is measured again and again. */
struct shortest {
    double value_s, until_s;
    int32_t known, zero;
};

static double shortest_take(struct shortest *shortest, double value_s, double now_s) {
    if (!shortest->known || value_s <= shortest->value_s || now_s >= shortest->until_s)
        *shortest = (struct shortest){value_s, now_s + LIFE_S, 1, 0};
    return shortest->value_s;
}

/* Remembers what was acknowledged of late. */
struct meter {
    struct points points;
    int64_t ticks; /* the receiver's clock in microseconds, in full */
    struct shortest shortest;
};

/* The newest packet arrived at that time of the receiver's clock (modulo 2^32), and had been sent at that one of the
 * sender's. app_limited: the network may have had nothing to do before one of those acknowledged now; the round trip is the
 * shortest. */
struct delivery meter_on_acknowledged(struct meter *meter, uint32_t arrived_us, double sent_s, uint64_t delivered_bytes,
                                      uint32_t train_bytes, int app_limited, double round_trip_s) {
    struct points *points = &meter->points;
    meter->ticks += points->num > 0 ? (int32_t)(arrived_us - (uint32_t)meter->ticks) : (int64_t)arrived_us;
    double arrived_s = (double)meter->ticks * 1e-6, way_s = arrived_s - sent_s;
    double queue_s = way_s - shortest_take(&meter->shortest, way_s, sent_s);
    struct point *last = points->num > 0 ? points_at(points, points->num - 1) : NULL;
    if (last && arrived_s < last->arrived_s) return (struct delivery){-1.0, 0.0, queue_s}; /* overtaken */
    int queued = queue_s >= QUEUE_S;
    double busy_s = last && last->queued && queued && !app_limited ? arrived_s - last->arrived_s : 0.0;
    *points_append(points) = (struct point){arrived_s, sent_s, delivered_bytes, train_bytes, queued};
    double interval_s = fmax(MIN_INTERVAL_S, round_trip_s);
    while (points->num > 2 && points_at(points, 1)->arrived_s <= arrived_s - interval_s) points_drop(points, 1);
    const struct point *first = points_at(points, 0);
    if (arrived_s - first->arrived_s < interval_s) return (struct delivery){-1.0, busy_s, queue_s};
    /* Of a train only the first packet's time is known, or the last one's: what both agree on counts. */
    double between_bytes = (double)(delivered_bytes - first->delivered_bytes);
    if (train_bytes > first->train_bytes) between_bytes -= train_bytes - first->train_bytes;
    double elapsed_s = fmax(arrived_s - first->arrived_s, sent_s - first->sent_s);
    return (struct delivery){fmax(0.0, between_bytes) * 8 / elapsed_s, busy_s, queue_s};
}

#endif
