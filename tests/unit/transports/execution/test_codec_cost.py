"""What a codec takes, measured without a network: every kind's exchange is driven to its end, and as a run would."""

import json
import os
import subprocess
import sys
from statistics import median

import pytest
import torch

import transports.execution.codec_cost
from tests.lockstep import Workers
from transports.compression.base import COMPRESSORS, Piece
from transports.compression.memory import Scratch
from transports.execution.codec_cost import _Alike, iterations_of
from transports.execution.gradients import GradientCompression, run

BUCKETS = [[(64, 64), (64,)], [(200, 3), (5,)]]
VALUES, LAYOUT = torch.linspace(-1, 1, 4096), [Piece("weight", (64, 64))]
COMPRESSING = sorted(kind for kind in COMPRESSORS.kinds() if COMPRESSORS.parse(kind).compresses)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports.execution.codec_cost, "ENOUGH_S", 0.02)


@pytest.mark.parametrize("kind", COMPRESSING)
def test_every_compressor_can_be_timed(kind: str) -> None:
    settled: list[bool] = []
    iterations = iterations_of(COMPRESSORS.parse(kind), BUCKETS, 3, lambda: settled.append(True))
    assert settled == [True]
    assert all(len(times) == len(BUCKETS) for times in iterations)
    assert sum(each.encode_s + each.decode_s for times in iterations for each in times) > 0


@pytest.mark.parametrize("kind", [kind for kind in COMPRESSING if not COMPRESSORS.parse(kind).data_dependent])
def test_as_much_is_handed_over_as_in_a_run(kind: str) -> None:
    worker, workers = _Alike(4), Workers(kind, 4)
    own = GradientCompression(COMPRESSORS.parse(kind), rank=0, num_workers=4)
    run(own.exchange(VALUES.clone(), LAYOUT), worker, Scratch())
    workers.mean([VALUES] * 4, LAYOUT)
    assert worker.codec.payload_bytes == workers.payload_bytes()


@pytest.mark.parametrize("kind", ["top_k", "powersgd"])
def test_what_is_decoded_is_what_workers_with_the_same_gradients_would_send(kind: str) -> None:
    """Where payloads are summed or gathered whole; of shards, every owner's is as long as this one's."""
    own = VALUES.clone()
    run(GradientCompression(COMPRESSORS.parse(kind), rank=0, num_workers=4).exchange(own, LAYOUT), _Alike(4), Scratch())
    assert torch.allclose(own, Workers(kind, 4).mean([VALUES] * 4, LAYOUT)[0], atol=1e-6)


def test_more_workers_to_decode_take_longer() -> None:
    """top_k gathers: a worker decodes everybody's, here 32 times as many. On idle cores that takes 17 times as long;
    the bound leaves room for cores that are busy while one of the two is timed."""
    bucket = [[(512, 1024)]]
    compressor = COMPRESSORS.parse({"kind": "top_k", "ratio": 0.1})
    few_s, many_s = (
        median(times[0].decode_s for times in iterations_of(compressor, bucket, number)) for number in (2, 64)
    )
    assert many_s > 4 * few_s


def _answer(**changed: object) -> "subprocess.CompletedProcess[str]":
    question = {"compression": "top_k", "num_workers": 4, "num_processes": 2, "buckets": BUCKETS, **changed}
    return subprocess.run(
        [sys.executable, "-m", "transports.execution.codec_cost"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        input=json.dumps(question),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_processes_of_their_own_answer_in_json() -> None:
    done = _answer()
    assert [len(each) for each in json.loads(done.stdout)] == [2, 2]


def test_a_process_that_fails_is_no_answer() -> None:
    done = _answer(compression="thc_table", num_workers=10_000)
    assert done.returncode != 0
    assert done.stdout == ""
    assert "a process that measures has failed" in done.stderr
