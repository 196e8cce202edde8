/*
 * How fast a connection may send: at a rate that is fixed, or at the one that it finds, or as its window says.
 *
 * Finding it is BBR's way (Cardwell et al., ACM Queue 14(5), 2016): the rate is the largest at which acknowledgements have
 * come back of late, so that random loss does not slow it down; start-up, drain and the cycle of gains are its version
 * 1's. Unlike it, a rate is forgotten only while the network is seen to be busy, a probe that finds more goes on, and
 * draining follows the queue that is seen. Left out are its probes of the round trip, since operations end and begin all
 * the time and drain the queue themselves.
 */
#ifndef UDP_PACING_H
#define UDP_PACING_H

#include "delivery.h"

/* What a sender hands over at once, at its rate: so long it may then sleep. */
const double BURST_S = 1e-3;
/* A sender that the scheduler kept away for up to this long makes up for it, */
const double CATCH_UP_S = 4e-3;
const double LONGEST_CATCH_UP_S = 10e-3;
/* and for longer while it is no more than so much, for which queues have room. */
const double CATCH_UP_BYTES = 500000;
/* What acknowledgements may be late by on a machine with few cores, without the sender falling silent. */
static const double JITTER_S = 8e-3;
const double MIN_FLIGHT_BYTES = 64 * 1514;
static const double STARTUP_GAIN = 2.89;
static const double CYCLE[] = {1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0};
enum { NUM_PHASES = sizeof CYCLE / sizeof *CYCLE };
/* For so long of a busy network the largest delivery rate is remembered, and for as many round trips as follow. What is
 * under way is bounded, so that a rate remembered too long costs a queue and little else. */
static const double MEMORY_S = 0.2;
static const double ROUNDS = 10;
/* How fast a rate ages that is not put to the test, as a part of the speed at which it does in a busy network... */
static const double FADING = 0.02;
/* ...and at rest it does not. */
static const double MAX_FADED_S = 0.01;
/* A probe that finds so many times the rate goes on. */
static const double GROWTH = 1.1;
/* A queue of so much is drained for longer than a phase, of them so many, since it may be somebody else's. */
static const double DEEP_S = 4e-3;
enum { MAX_DRAINS = 4 };
#define PHASE_S MIN_INTERVAL_S /* a phase of the cycle takes so long, or a round trip */

struct found_rate {
    double until_s; /* what age it counts up to */
    double rate_bps;
};
DEFINE_QUEUE(found_rates, struct found_rate)

enum pace_kind { WINDOW_PACE, FIXED_PACE, PROBED_PACE };
enum pace_state { STARTUP, DRAIN, PROBE };

/* A rate and the bytes under way that it justifies, both of whole packets on the wire. */
struct pace {
    uint32_t kind, state;
    double fixed_bps;
    struct shortest base; /* round trip */
    struct found_rates best; /* falling */
    double age_s, faded_s;
    double full_bps, round_ends_s;
    double phase_ends_s, probed_bps, latest_bps;
    uint32_t rounds_without_growth, phase, num_drains, zero;
};

/* The rate that a probed pace believes in; 0: none yet. */
double pace_bottleneck_bps(const struct pace *pace) {
    return pace->best.num > 0 ? found_rates_at(&pace->best, 0)->rate_bps : 0.0;
}

/* Bits per second to send at now; 0: as fast as the window allows. */
double pace_rate_bps(const struct pace *pace) {
    if (pace->kind == FIXED_PACE) return pace->fixed_bps;
    double gain = pace->state == STARTUP ? STARTUP_GAIN : pace->state == DRAIN ? 1 / STARTUP_GAIN : CYCLE[pace->phase];
    return pace_bottleneck_bps(pace) * gain;
}

/* How much may be under way: two round trips' worth, with room for late acknowledgements; infinity: as much as the window
 * allows. */
double pace_flight_bytes(const struct pace *pace) {
    if (pace->kind == WINDOW_PACE) return INFINITY;
    if (pace->kind == FIXED_PACE && !pace->base.known) return INFINITY;
    double rate_bps = pace->kind == FIXED_PACE ? pace->fixed_bps : pace_bottleneck_bps(pace);
    double gain = pace->kind == PROBED_PACE && pace->state == STARTUP ? STARTUP_GAIN : 2.0;
    if (rate_bps == 0.0 || !pace->base.known) return MIN_FLIGHT_BYTES;
    return fmax(MIN_FLIGHT_BYTES, rate_bps / 8 * (gain * pace->base.value_s + JITTER_S));
}

/* With no more than this under way the network may rest: what it held of late. A rate that is believed in error must not
 * hide that the network is busy. */
static double pace_path_bytes(const struct pace *pace) {
    if (pace->kind != PROBED_PACE || !pace->base.known) return 0.0;
    return fmin(pace_bottleneck_bps(pace), pace->latest_bps) / 8 * pace->base.value_s;
}

static void probe_phase(struct pace *pace, double bottleneck_bps, double base_s, double queue_s, int drained, double now_s) {
    int more = pace->phase == 0 && bottleneck_bps >= GROWTH * pace->probed_bps;
    int deep = pace->phase == 1 && !drained && queue_s >= fmax(DEEP_S, base_s / 2) && pace->num_drains < MAX_DRAINS;
    pace->num_drains = deep ? pace->num_drains + 1 : 0;
    if (!more && !deep) pace->phase = (pace->phase + 1) % NUM_PHASES;
    pace->probed_bps = bottleneck_bps;
    pace->phase_ends_s = now_s + fmax(base_s, PHASE_S);
}

static void advance_pace(struct pace *pace, double bottleneck_bps, double base_s, double queue_s, double round_trip_s,
                         double flight_bytes, double now_s) {
    int filled = queue_s >= fmax(QUEUE_S, base_s / 2) && bottleneck_bps < STARTUP_GAIN * pace->full_bps;
    if (pace->state == STARTUP && filled) pace->state = DRAIN;
    if (pace->state == STARTUP && now_s >= pace->round_ends_s) {
        pace->round_ends_s = now_s + fmax(round_trip_s, PHASE_S);
        if (bottleneck_bps >= 1.25 * pace->full_bps)
            pace->full_bps = bottleneck_bps, pace->rounds_without_growth = 0;
        else if (++pace->rounds_without_growth >= 3)
            pace->state = DRAIN;
    }
    int drained = flight_bytes <= fmax(MIN_FLIGHT_BYTES, bottleneck_bps / 8 * base_s);
    if (pace->state == DRAIN && (drained || queue_s < QUEUE_S))
        pace->state = PROBE, pace->phase = NUM_PHASES - 1, pace->phase_ends_s = now_s;
    if (pace->state == PROBE && now_s >= pace->phase_ends_s)
        probe_phase(pace, bottleneck_bps, base_s, queue_s, drained, now_s);
}

/* A round trip was measured, and how packets came through, whole ones on the wire. A probed pace remembers the rate, and
 * moves to the next state when it is time; to a fixed one only the shortest round trip of all matters. */
void pace_on_acknowledged(struct pace *pace, const struct delivery *delivery, double round_trip_s, double flight_bytes,
                          double now_s) {
    if (pace->kind == WINDOW_PACE) return;
    if (pace->kind == FIXED_PACE) {
        if (!pace->base.known || round_trip_s < pace->base.value_s) pace->base.value_s = round_trip_s;
        pace->base.known = 1;
        return;
    }
    double base_s = shortest_take(&pace->base, round_trip_s, now_s);
    struct found_rates *best = &pace->best;
    pace->age_s += fmax(delivery->busy_s, FADING * fmin(now_s - pace->faded_s, MAX_FADED_S));
    pace->faded_s = now_s;
    while (best->num > 1 && found_rates_at(best, 0)->until_s < pace->age_s) found_rates_drop(best, 1);
    if (delivery->rate_bps > 0.0) {
        pace->latest_bps = delivery->rate_bps;
        while (best->num > 0 && found_rates_at(best, best->num - 1)->rate_bps <= delivery->rate_bps) best->num--;
        *found_rates_append(best) =
            (struct found_rate){pace->age_s + fmax(MEMORY_S, ROUNDS * base_s), delivery->rate_bps};
    }
    double bottleneck_bps = pace_bottleneck_bps(pace);
    if (bottleneck_bps > 0.0)
        advance_pace(pace, bottleneck_bps, base_s, delivery->queue_s, round_trip_s, flight_bytes, now_s);
}

/* Spaces packets out; several connections may share one, and with it a link. */
struct pacer {
    double next_s; /* when the next packet may leave, but for what a burst lets leave early */
    double burst_ends_s;
};

/* Whether a packet may leave now: its time has come, or a burst that began at its time goes on. */
int pacer_opens(struct pacer *pacer, double now_s) {
    if (now_s >= pacer->next_s) pacer->burst_ends_s = now_s + BURST_S;
    return pacer->next_s < pacer->burst_ends_s;
}

/* Nothing leaves before. */
void pacer_pause(struct pacer *pacer, double until_s) {
    pacer->next_s = fmax(pacer->next_s, until_s), pacer->burst_ends_s = 0.0;
}

/* So much leaves now, at that rate; 0: at none. */
void pacer_spend(struct pacer *pacer, uint64_t num_bytes, double rate_bps, double now_s) {
    if (rate_bps == 0.0) return;
    double catch_up_s = fmax(CATCH_UP_S, fmin(LONGEST_CATCH_UP_S, CATCH_UP_BYTES * 8 / rate_bps));
    pacer->next_s = fmax(pacer->next_s, now_s - catch_up_s) + (double)num_bytes * 8 / rate_bps;
}

#endif
