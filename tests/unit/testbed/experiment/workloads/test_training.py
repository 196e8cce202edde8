# mypy: disable-error-code="no-untyped-call"
"""Training over real sockets on loopback, in processes of their own; only the control plane is left out."""

from itertools import pairwise
from typing import Any

import pytest

from testbed.control.worker import WorkerConfiguration
from testbed.experiment.experiment import Experiment, validate
from testbed.experiment.workloads.base import WORKLOADS, AgentWorkload, Workload
from testbed.experiment.workloads.training import Training
from testbed.plan.plan import make_plan
from testbed.worker.agent import work_of
from tests.ranks import ADDRESS, Rank, run_ranks
from tests.training_ranks import Listener, Worker, account, trained

NUM_WORKERS = 4
OPTIONS: dict[str, Any] = {
    "batch_size": 4,
    "compute_only": 1,
    "warmup": 2,
    "iterations": 6,
    "learning_rate": 0.1,
    "momentum": 0.5,
}


def _configuration(
    rank: Rank, stack: str | None, seed: int, compression: str, fusion: object, every: int | None
) -> WorkerConfiguration:
    return WorkerConfiguration(
        run_id="test",
        rank=rank.rank,
        num_workers=rank.size,
        host=f"w{rank.rank}",
        interface="lo",
        address=ADDRESS,
        seed=seed,
        workload={},
        collective={"kind": "ring"},
        channel={"kind": "tcp"},
        compression={"kind": compression},
        stack=stack and {"kind": stack},
        **_fused(fusion, {"kind": "local_sgd", "every": every} if every else "every_iteration"),
        dilation=1.0,
        timeout_s=30.0,
        store_path=rank.store_path,
        num_threads=1,
    )


def _fused(fusion: object, synchronisation: object) -> dict[str, Any]:
    made = make_plan(validate({"name": "x", "fusion": fusion, "workload": {"kind": "training", "batch_size": 4}}))
    return {
        "fusion": made.experiment.fusion,
        "buckets": made.buckets,
        "synchronisation": Experiment.model_validate({"name": "x", "synchronisation": synchronisation}).synchronisation,
    }


def _work(
    rank: Rank,
    options: dict[str, Any],
    stack: str | None = None,
    seed: int = 1,
    compression: str = "none",
    fusion: object = "size",
    every: int | None = None,
) -> dict[str, Any]:
    control = Listener(rank)
    workload = WORKLOADS.parse({"kind": "training", **options})
    assert isinstance(workload, AgentWorkload)
    work_of(workload)(workload, _configuration(rank, stack, seed, compression, fusion, every), control)
    return account(control)


def _train(num_workers: int = NUM_WORKERS, **changes: Any) -> list[Worker]:
    stack, seed = changes.pop("stack", None), changes.pop("seed", 1)
    compression = changes.pop("compression", "none")
    fusion, every = changes.pop("fusion", "size"), changes.pop("every", None)
    outcomes = run_ranks(_work, num_workers, OPTIONS | changes, stack, seed, compression, fusion, every)
    return [Worker(outcome.value) for outcome in outcomes]


@pytest.fixture(scope="module")
def workers() -> list[Worker]:
    return _train(verify_gradients=True)


@pytest.fixture(scope="module")
def gloo_workers() -> list[Worker]:
    return _train(stack="gloo", verify_gradients=True)


@pytest.fixture(scope="module")
def openmpi_workers() -> list[Worker]:
    return _train(stack="openmpi", verify_gradients=True)


@pytest.fixture(params=["testbed", "gloo", "openmpi"])
def either(request: pytest.FixtureRequest) -> list[Worker]:
    name = "workers" if request.param == "testbed" else f"{request.param}_workers"
    trained: list[Worker] = request.getfixturevalue(name)
    return trained


def test_every_phase_reports_its_iterations_in_order(either: list[Worker]) -> None:
    for worker in either:
        alone = [f"compute_alone_{rank}" for rank in range(NUM_WORKERS)]
        assert worker.barriers == ["started", *alone, "compute_only", "compute_only_done", "warmup", "measure", "done"]
        for phase, count in (("compute_alone", 1), ("compute_only", 1), ("warmup", 2), ("measured", 6)):
            assert [iteration.index for iteration in worker.phase(phase)] == list(range(count))
        assert all(iteration.num_samples == 4 for iteration in worker.iterations)


def test_the_moments_of_an_iteration_follow_each_other(either: list[Worker]) -> None:
    for worker in either:
        last_end_s = 0.0
        for iteration in worker.iterations:
            moments = [
                last_end_s,
                iteration.start_s,
                iteration.forward_end_s,
                iteration.backward_compute_end_s,
                iteration.backward_end_s,
                iteration.optimizer_end_s,
                iteration.end_s,
            ]
            assert moments == sorted(moments)
            last_end_s = iteration.end_s
            assert iteration.cpu_s > 0
            assert iteration.run_queue_delay_s >= iteration.communication_run_queue_delay_s >= 0


def test_every_bucket_is_accounted_for(either: list[Worker]) -> None:
    gradient_bytes = 4 * sum(WORKLOADS.parse("training").parameter_counts())
    for worker in either:
        assert all(not iteration.buckets for iteration in worker.phase("compute_only"))
        for iteration in worker.phase("measured"):
            assert sum(bucket.size_bytes for bucket in iteration.buckets) == gradient_bytes
            assert len(iteration.buckets) >= 4
            for bucket in iteration.buckets:
                moments = [bucket.enqueued_s, bucket.started_s, bucket.first_byte_s, bucket.done_s]
                assert moments == sorted(moments)
                assert iteration.forward_end_s <= bucket.enqueued_s
                assert bucket.done_s <= iteration.backward_end_s
            *others_s, last_s = sorted(bucket.enqueued_s for bucket in iteration.buckets)
            assert max(others_s) < iteration.backward_compute_end_s <= last_s


def test_parameters_are_bit_identical_across_workers(either: list[Worker]) -> None:
    assert len({worker.finished.parameters_sha256 for worker in either}) == 1
    assert either[0].finished.num_parameters == sum(WORKLOADS.parse("training").parameter_counts())


def test_the_loss_falls(workers: list[Worker]) -> None:
    losses = workers[0].losses()
    assert losses[-1] < 0.8 * losses[0]


@pytest.fixture(scope="module")
def two_workers() -> list[Worker]:
    return _train(num_workers=2)


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(two_workers: list[Worker]) -> None:
    again = _train(num_workers=2, verify_gradients=True)  # which does not change a bit either
    other = _train(num_workers=2, seed=2)
    assert again[0].finished.parameters_sha256 == two_workers[0].finished.parameters_sha256
    assert again[0].losses() == two_workers[0].losses()
    assert other[0].finished.parameters_sha256 != two_workers[0].finished.parameters_sha256


def test_the_number_of_compute_only_iterations_changes_no_result(two_workers: list[Worker]) -> None:
    assert _train(num_workers=2, compute_only=3)[0].losses() == two_workers[0].losses()


@pytest.mark.parametrize("kind", ["top_k", "powersgd"])
def test_compressed_gradients_train_too_and_every_byte_and_second_is_reported(kind: str) -> None:
    """Buckets are formed anew in the second iteration; the errors fed back follow the parameters."""
    trained = _train(num_workers=2, compression=kind)
    assert len({worker.finished.parameters_sha256 for worker in trained}) == 1
    losses = trained[0].losses()
    assert losses[-1] < losses[0]
    made = make_plan(validate({"name": "x", "workers": 2, "compression": kind}))
    for iteration in trained[0].phase("measured"):
        assert [bucket.size_bytes for bucket in iteration.buckets] == [4 * count for count in made.buckets]
        assert sum(bucket.payload_bytes for bucket in iteration.buckets) == made.prediction.payload_bytes
        assert all(bucket.encode_s > 0 and bucket.decode_s > 0 for bucket in iteration.buckets)


@pytest.mark.parametrize("fusion", ["layers", "none", {"bytes": "16KiB"}, {"bytes": "700kB"}], ids=str)
def test_distributed_data_parallel_forms_the_buckets_that_the_plan_says(fusion: object) -> None:
    made = make_plan(validate({"name": "x", "workers": 2, "fusion": fusion}))
    for worker in _train(num_workers=2, fusion=fusion, iterations=1):
        (iteration,) = worker.phase("measured")
        assert [bucket.size_bytes for bucket in iteration.buckets] == [4 * count for count in made.buckets]
        enqueued_s = [bucket.enqueued_s for bucket in iteration.buckets]
        assert enqueued_s == sorted(enqueued_s)
        assert (enqueued_s[0] >= iteration.backward_compute_end_s) == (fusion == "none")


@pytest.mark.parametrize(
    "fusion", [{"kind": "merged", "backward": "0.2s"}, {"kind": "priority", "bytes": "200kB"}], ids=str
)
def test_the_engine_forms_the_buckets_that_the_plan_says_and_gets_the_same_bits(
    fusion: object, two_workers: list[Worker]
) -> None:
    made = make_plan(validate({"name": "x", "fusion": fusion, "workload": {"kind": "training", "batch_size": 4}}))
    for worker in _train(num_workers=2, fusion=fusion):
        assert worker.finished.parameters_sha256 == two_workers[0].finished.parameters_sha256
        for iteration in worker.phase("measured"):
            assert sorted(bucket.size_bytes for bucket in iteration.buckets) == sorted(
                4 * count for count in made.buckets
            )


def test_priority_waits_in_the_next_forward_pass_and_reports_what_went_out_then() -> None:
    for worker in _train(num_workers=2, fusion="priority"):
        *trailing, last = worker.phase("measured")
        for iteration, following in zip(trailing, worker.phase("measured")[1:], strict=True):
            assert iteration.backward_end_s == iteration.backward_compute_end_s
            assert max(bucket.done_s for bucket in iteration.buckets) <= following.forward_end_s
            assert following.forward_stall_s > 0
        assert max(bucket.done_s for bucket in last.buckets) <= last.backward_end_s


def test_cycles_join_what_is_ready_and_lose_nothing(two_workers: list[Worker]) -> None:
    for worker in _train(num_workers=2, fusion={"kind": "time", "cycle": "50ms"}):
        assert worker.finished.parameters_sha256 == two_workers[0].finished.parameters_sha256
        for iteration in worker.phase("measured"):
            sizes_bytes = [bucket.size_bytes for bucket in iteration.buckets]
            assert sum(sizes_bytes) == 4 * iteration_elements()
            assert len(sizes_bytes) < 9, "several layers become ready in a cycle"


def test_the_engines_gradients_are_the_float64_mean() -> None:
    _train(num_workers=2, fusion="merged", iterations=2, verify_gradients=True)


def test_local_sgd_averages_parameters_every_so_often_and_at_the_end() -> None:
    workers = _train(num_workers=2, iterations=5, every=3)
    assert len({worker.finished.parameters_sha256 for worker in workers}) == 1
    for worker in workers:
        measured = worker.phase("measured")
        assert [iteration.staleness for iteration in measured] == [0, 1, 2, 0, 1]
        sizes_bytes = [sum(bucket.size_bytes for bucket in iteration.buckets) for iteration in measured]
        assert sizes_bytes == [0, 0, 4 * iteration_elements(), 0, 4 * iteration_elements()]
    assert workers[0].losses()[-1] < workers[0].losses()[0]


def test_averaging_after_every_step_is_averaging_gradients(two_workers: list[Worker]) -> None:
    """Of stochastic gradient descent, which is linear in the gradient; to rounding."""
    averaged = _train(num_workers=2, every=1)[0].losses()
    assert averaged == pytest.approx(two_workers[0].losses(), rel=1e-4)


def iteration_elements() -> int:
    return sum(WORKLOADS.parse("training").parameter_counts())


def _whole_batch(rank: Rank, options: dict[str, Any]) -> list[float]:
    """The same training by one process that knows nothing of workers."""
    import torch
    from torch.nn.functional import cross_entropy

    from testbed.experiment.workloads._models import MODELS
    from testbed.worker.datasets import batches, digits

    torch.manual_seed(1)
    model = MODELS["cnn"].build()
    optimizer = torch.optim.SGD(model.parameters(), lr=options["learning_rate"], momentum=options["momentum"])
    data = digits()
    losses = []
    dealt = batches(
        num_images=1797, batch_size=NUM_WORKERS * options["batch_size"], rank=rank.rank, num_workers=1, seed=1
    )
    for _ in range(options["warmup"] + options["iterations"]):
        numbers = next(dealt)
        loss = cross_entropy(model(torch.from_numpy(data.images[numbers])), torch.from_numpy(data.labels[numbers]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_the_loss_curve_is_that_of_one_process_with_the_whole_batch() -> None:
    options = OPTIONS | {"batch_size": 8, "iterations": 50}
    (whole,) = (outcome.value for outcome in run_ranks(_whole_batch, 1, options))
    trained = _train(**options)
    for iteration, loss in enumerate(whole):
        mean = sum(worker.losses()[iteration] for worker in trained) / NUM_WORKERS
        assert mean == pytest.approx(loss, rel=1e-4), f"iteration {iteration} of {len(whole)}"
    assert whole[-1] < 0.5 * whole[0]


def _with_a_wrong_gradient(rank: Rank) -> str:
    from testbed.worker.gradient_hook import GradientHook

    honest = GradientHook.reduce

    def wrong(self: GradientHook, state: object, bucket: Any) -> Any:
        future = honest(self, state, bucket)
        future.wait()
        bucket.buffer()[0] += 1.0
        return future

    wrong.__annotations__.clear()
    GradientHook.reduce = wrong  # type: ignore[method-assign, assignment]
    try:
        _work(rank, OPTIONS | {"verify_gradients": True})
    except ArithmeticError as error:
        return str(error)
    return ""


def test_verification_finds_a_wrong_gradient() -> None:
    for outcome in run_ranks(_with_a_wrong_gradient, 2):
        assert "differs from the float64 mean" in outcome.value


def test_one_worker_trains_alone() -> None:
    (worker,) = _train(num_workers=1)
    assert len(worker.phase("measured")) == OPTIONS["iterations"]


@pytest.mark.parametrize(
    ("option", "value"),
    [("warmup", 1), ("iterations", 0), ("batch_size", 0), ("model", "resnet"), ("momentum", 1.0), ("epochs", 3)],
)
def test_options_out_of_range_are_refused(option: str, value: object) -> None:
    with pytest.raises(ValueError, match=option):
        WORKLOADS.parse({"kind": "training", option: value})


def test_phases_are_given_to_whoever_watches() -> None:
    training = WORKLOADS.parse({"kind": "training", "compute_only": 4, "warmup": 2, "iterations": 5})
    assert training.phase_lengths() == {"compute_only": 4, "warmup": 2, "measured": 5}
    assert training.num_iterations() == 5


def test_links_carry_more_than_gradients_only_while_they_are_verified() -> None:
    assert WORKLOADS.parse("training").sends_only_gradients()
    assert not WORKLOADS.parse({"kind": "training", "verify_gradients": True}).sends_only_gradients()


def test_options_survive_the_way_to_the_worker() -> None:
    training: Workload = WORKLOADS.parse({"kind": "training", "iterations": 5})
    assert WORKLOADS.parse(WORKLOADS.dump(training)) == training


PACED = OPTIONS | {"iterations": 3, "pace": {"forward": "60ms", "backward": "120ms", "update": "20ms"}}


@pytest.fixture(scope="module")
def paced() -> list[Worker]:
    return trained({"workload": {"kind": "training", **PACED}})


@pytest.mark.quiet  # to a millisecond
def test_paced_computing_lasts_as_long_as_its_pace_and_no_bucket_leaves_before_it_is_due(paced: list[Worker]) -> None:
    workload = WORKLOADS.parse({"kind": "training", **PACED})
    assert isinstance(workload, Training)
    table = workload.layer_table()
    shares = [layer.backward_s / 0.12 for layer in table.layers]
    assert sum(shares) == pytest.approx(1)
    for worker in paced:
        late_s = []
        for iteration in worker.iterations:
            assert iteration.pace_s == pytest.approx(0.2)
            assert iteration.forward_end_s - iteration.start_s == pytest.approx(0.06)
            assert iteration.optimizer_end_s - iteration.backward_end_s == pytest.approx(0.02)
            assert iteration.end_s == iteration.optimizer_end_s
            backward_s = iteration.backward_compute_end_s - iteration.forward_end_s
            assert backward_s >= 0.12
            late_s.append(backward_s - 0.12 - iteration.overrun_s)
        # One may be later than is counted because its worker lost its core just then.
        assert min(late_s) <= 1e-3
        for iteration in worker.phase("measured"):
            # The first bucket holds the last layers, the head and two convolutions.
            first, *_ = sorted(iteration.buckets, key=lambda bucket: bucket.sequence)
            assert first.enqueued_s >= iteration.forward_end_s + 0.12 * sum(shares[-2:])
            assert first.enqueued_s < iteration.backward_compute_end_s


def test_iterations_follow_each_other_without_the_hosts_bookkeeping_between(paced: list[Worker]) -> None:
    for worker in paced:
        for before, after in pairwise(worker.phase("measured")):
            assert after.start_s == before.end_s


def test_a_pace_changes_no_number_that_is_learnt(paced: list[Worker]) -> None:
    free = trained({"workload": {"kind": "training", **PACED, "pace": None}})
    assert [worker.losses() for worker in paced] == [worker.losses() for worker in free]
    assert {worker.finished.parameters_sha256 for worker in (*paced, *free)} == {free[0].finished.parameters_sha256}
    assert all(iteration.pace_s == 0 for worker in free for iteration in worker.iterations)


def test_a_machine_that_is_slower_than_the_pace_is_found_out() -> None:
    workload = {"kind": "training", **OPTIONS, "pace": {"forward": "1us", "backward": "1us"}}
    for worker in trained({"workload": workload}):
        for iteration in worker.phase("measured"):
            assert iteration.overrun_s > 100 * iteration.pace_s


@pytest.mark.quiet  # to a millisecond
@pytest.mark.parametrize("fusion", ["priority", "merged", "horovod_5ms"])
def test_a_pace_holds_in_any_order(fusion: str) -> None:
    for worker in trained({"fusion": fusion, "workload": {"kind": "training", **PACED}}):
        late_s = []
        for iteration in worker.phase("measured"):
            computed_s = iteration.backward_compute_end_s - iteration.start_s - iteration.forward_stall_s
            assert computed_s + 1e-9 >= 0.18
            late_s.append(computed_s - 0.2 - iteration.overrun_s)
        assert min(late_s) <= 1e-3


def test_dilated_workers_wait_longer_and_report_the_clock() -> None:
    for worker in trained({"workload": {"kind": "training", **PACED}}, dilation=2.0):
        for iteration in worker.iterations:
            assert iteration.pace_s == pytest.approx(0.4)
            assert iteration.forward_end_s - iteration.start_s == pytest.approx(0.12)


@pytest.mark.parametrize(
    "pace", [{"forward": "40ms"}, {"forward": "0s", "backward": "1ms"}, {"forward": "1ms", "backward": "1ms", "x": 1}]
)
def test_a_pace_that_is_none_is_refused(pace: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="pace"):
        WORKLOADS.parse({"kind": "training", "pace": pace})
