#!/bin/sh
# One server, everybody else measures towards it: testbed exec --workers 2 --link 100mbit,5ms -- sh examples/iperf.sh
set -eu
seconds=${1:-2}
port() { echo $((5200 + $1)); }
if [ "$RANK" = 0 ]; then
    peer=1
    while [ "$peer" -lt "$WORLD_SIZE" ]; do
        iperf3 --server --one-off --port "$(port "$peer")" >/dev/null &
        peer=$((peer + 1))
    done
    wait
else
    tries=0
    until iperf3 --client "$MASTER_ADDR" --port "$(port "$RANK")" --time "$seconds" --interval 0; do
        tries=$((tries + 1))
        [ "$tries" -lt 10 ] || exit 1
        sleep 0.2
    done
fi
