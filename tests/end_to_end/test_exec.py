"""`testbed exec` with scripts as users write them, nothing in which knows of us."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from testbed.system.run_state import RUN_ROOT
from tests.here import Done, invoke

pytestmark = pytest.mark.privileged
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PYTHON = sys.executable


def words(output: Path, command: list[str], *options: str) -> list[str]:
    fixed = ["--workers", "2", "--output", str(output), "--set", "metrics.port=0"]
    return ["exec", *fixed, *options, "--", *command]


def argv(output: Path, command: list[str], *options: str) -> list[str]:
    return [PYTHON, "-m", "testbed", *words(output, command, *options)]


def execute(output: Path, command: list[str], *options: str) -> Done:
    return invoke(*words(output, command, *options))


def summary_of(output: Path) -> dict[str, Any]:
    (path,) = output.glob("*/summary.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def nothing_is_left(run_id: str) -> bool:
    marked = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"TESTBED_RUN_ID={run_id}".encode() in (process / "environ").read_bytes():
                marked.append(process.name)
    return not marked and not (RUN_ROOT / run_id).exists()


SCRIPTS = {
    "ddp": ([PYTHON, str(EXAMPLES / "ddp.py"), "--epochs", "1"], "gloo", "epoch 0 loss"),
    "fsdp2": ([PYTHON, str(EXAMPLES / "fsdp2.py")], "default", "step 4 loss"),
    "all_reduce": ([PYTHON, str(EXAMPLES / "all_reduce.py")], "gloo", "Mbit/s"),
}


@pytest.mark.parametrize("backend", [pytest.param(None, marks=pytest.mark.slow), "testbed"])
@pytest.mark.parametrize("script", ["ddp", pytest.param("fsdp2", marks=pytest.mark.slow), "all_reduce"])
def test_scripts_run_unchanged_with_their_backend_and_with_ours(
    tmp_path: Path, script: str, backend: str | None
) -> None:
    command, requested, printed = SCRIPTS[script]
    options = ["--link", "200mbit", *(["--backend", backend] if backend else [])]
    done = execute(tmp_path, command, *options)
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout
    for rank in (0, 1):
        assert (
            f"[w{rank}] rank {rank} done with {backend or ('undefined' if requested == 'default' else requested)}"
            in (done.stdout + done.stderr)
        )
    summary = summary_of(tmp_path)
    assert summary["command"]["argv"] == command
    assert summary["command"]["redirected"] == ([requested] if backend else [])
    assert [worker["status"] for worker in summary["command"]["workers"]] == [0, 0]
    assert all(link["bytes"] > 10_000 for link in summary["links"])
    assert nothing_is_left(summary["run_id"])


@pytest.mark.parametrize("backend", [pytest.param(None, marks=pytest.mark.slow), "testbed"])
def test_iperf_gets_what_the_link_has(tmp_path: Path, backend: str | None) -> None:
    options = ["--link", "50mbit,5ms", *(["--backend", backend] if backend else [])]
    done = execute(tmp_path, ["sh", str(EXAMPLES / "iperf.sh"), "2"], *options)
    assert done.returncode == 0, done.stderr
    assert "[w1] " in done.stdout
    assert "receiver" in done.stdout
    summary = summary_of(tmp_path)
    (up,) = (link for link in summary["links"] if link["from"] == "w1")
    assert up["bytes"] > 0.5 * 50e6 / 8 * 2
    assert 0.5 < up["utilization_busy"] < 1.01
    assert up["measured_rate_bps"] == pytest.approx(50e6, rel=0.01)
    assert any("workload.backend" in reason for reason in summary["reasons"]) == (backend is not None)
    report = next(tmp_path.glob("*/report.html")).read_text()
    assert "iperf.sh" in report


def test_a_program_without_torch_finds_the_others(tmp_path: Path) -> None:
    done = execute(tmp_path, [PYTHON, str(EXAMPLES / "sockets.py")], "--set", "workers=3")
    assert done.returncode == 0, done.stderr
    assert {f"[w{rank}] rank {rank} sum 3" for rank in range(3)} <= set(done.stdout.splitlines())


LOSING = """
import os
import torch, torch.distributed as dist
from switch_agg.control.service import ControlClient
from testbed.deployment.aggregator_control import sockets

dist.init_process_group("gloo")
for number in range(6):
    if number == 3 and dist.get_rank() == 0:
        (control,) = sockets(os.environ["TESTBED_RUN_ID"])
        with ControlClient(control) as client:
            client.reset(0)
    dist.barrier()
    tensor = torch.ones(10_000)
    dist.all_reduce(tensor)
    assert (tensor == dist.get_world_size()).all()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("script", [LOSING, LOSING.replace("number == 3", "False")], ids=["reset", "undisturbed"])
def test_a_command_whose_switch_is_lost_ends_with_the_ring_and_says_so(tmp_path: Path, script: str) -> None:
    options = ["--backend", "testbed", "--set", "collective=in_network", "--link", "200mbit"]
    done = execute(tmp_path, [PYTHON, "-c", script], *options)
    assert done.returncode == 0, done.stderr
    summary = summary_of(tmp_path)
    reasons = [reason for reason in summary["reasons"] if "went around the ring" in reason]
    (aggregator,) = summary["aggregators"]
    assert aggregator["chunks"] > 0
    assert aggregator["retransmitted"] is None, "nobody has counted it"
    if script == LOSING:
        assert summary["outcome"] == "degraded"
        assert len(reasons) == 1
        assert "reset the job" in aggregator["lost"]
    else:
        assert reasons == []
        assert aggregator["lost"] is None


def test_a_failure_is_passed_on_and_named(tmp_path: Path) -> None:
    script = 'echo hello; if [ "$RANK" = 1 ]; then echo broken >&2; exit 42; fi; exec sleep 60'
    done = execute(tmp_path, ["sh", "-c", script])
    assert done.returncode == 42
    assert "[w0] hello" in done.stdout
    assert "[w1] broken" in done.stderr
    assert "w1 (rank 1) ended with status 42" in done.stderr
    summary = summary_of(tmp_path)
    assert summary["outcome"] == "failed"
    assert [worker["status"] for worker in summary["command"]["workers"]] == [-signal.SIGTERM, 42]
    (logs,) = tmp_path.glob("*/logs")
    assert (logs / "w1.stderr.log").read_text() == "broken\n"
    assert nothing_is_left(summary["run_id"])


def test_standard_output_is_one_object_for_scripts(tmp_path: Path) -> None:
    done = execute(tmp_path, ["sh", "-c", "echo $LOCAL_RANK of $LOCAL_WORLD_SIZE on $GROUP_RANK"], "--json",
                   "--set", "workers=3", "--set", "workers_per_host=2")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["command"]["backend"] is None
    said = {line for line in done.stderr.splitlines() if " of " in line}
    assert said >= {"[w0] 0 of 2 on 0", "[w1] 1 of 2 on 0", "[w2] 0 of 1 on 1"}


def test_a_program_that_is_not_there_makes_nothing(tmp_path: Path) -> None:
    done = execute(tmp_path, ["no-such-program"])
    assert done.returncode == 3
    assert "no-such-program" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_why_a_program_cannot_start_is_said(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("#!/no/such/python\n")
    for mode, why in ((0o644, "may not be executed: chmod +x"), (0o755, "/no/such/python in its first line")):
        script.chmod(mode)
        done = execute(tmp_path / "results", [str(script)])
        assert done.returncode == 3
        assert why in done.stderr
    assert not (tmp_path / "results").exists()


def test_one_worker_is_enough(tmp_path: Path) -> None:
    script = 'echo "$RANK of $WORLD_SIZE on $(hostname) at $(getent hosts $(hostname) | tr -s " ")"'
    done = execute(tmp_path, ["sh", "-c", script], "--workers", "1")
    assert done.returncode == 0, done.stderr
    assert "[w0] 0 of 1 on w0 at 10.0.0.2 w0\n" in done.stdout
    assert "One worker ran the command" in done.stdout
    summary = summary_of(tmp_path)
    assert {(link["from"], link["to"]) for link in summary["links"]} == {("w0", "s0"), ("s0", "w0")}
    assert all(link["measured_rate_bps"] == pytest.approx(100e6, rel=0.01) for link in summary["links"])


def test_workers_reach_each_other_by_the_names_they_announce(tmp_path: Path) -> None:
    """As torchft and launchers do: each listens and says where by gethostname()."""
    script = (
        "import os, socket, torch.distributed as dist\n"
        "rank, size = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])\n"
        "server = socket.create_server((socket.gethostname(), 0))\n"
        "store = dist.TCPStore('w0', int(os.environ['MASTER_PORT']), size, is_master=rank == 0)\n"
        "store.set(str(rank), f'{socket.gethostname()} {server.getsockname()[1]}')\n"
        "host, port = store.get(str((rank + 1) % size)).decode().split()\n"
        "with socket.create_connection((host, int(port))) as peer: peer.sendall(b'x')\n"
        "connection, (address, _) = server.accept()\n"
        "assert connection.recv(1) == b'x'\n"
        "print('heard', socket.gethostbyaddr(address)[0], flush=True)\n"
        "store.set(f'done {rank}', '')\n"
        "for each in range(size): store.get(f'done {each}')\n"
    )
    done = execute(tmp_path, [PYTHON, "-c", script], "--set", "workers=3")
    assert done.returncode == 0, done.stderr
    assert {f"[w{rank}] heard w{(rank - 1) % 3}" for rank in range(3)} <= set(done.stdout.splitlines())


def test_two_runs_at_once_share_nothing(tmp_path: Path) -> None:
    """Not the port of the page of metrics either, which is nobody's to choose here."""
    command = [PYTHON, str(EXAMPLES / "sockets.py")]
    options = [word for word in argv(tmp_path, command) if word not in ("--set", "metrics.port=0")]
    pipe = subprocess.PIPE
    started = [subprocess.Popen(options, stdout=pipe, stderr=pipe, text=True) for _ in range(2)]
    said = [process.communicate(timeout=150) for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert all({"[w0] rank 0 sum 1", "[w1] rank 1 sum 1"} <= set(output.splitlines()) for output, _ in said)
    assert len(list(tmp_path.glob("*/summary.json"))) == 2


def test_an_mpi_program_is_joined_by_mpirun_and_not_without(tmp_path: Path) -> None:
    command = [PYTHON, str(EXAMPLES / "with_mpi4py.py")]
    mpirun = str(Path(PYTHON).with_name("mpirun"))
    alone = execute(tmp_path / "alone", command)
    assert alone.returncode == 0, alone.stderr
    assert alone.stdout.count("rank 0 of 1 on") == 2
    assert any("--launcher -- mpirun" in note for note in summary_of(tmp_path / "alone")["notes"])
    joined = execute(tmp_path / "joined", [mpirun, *command], "--launcher", "--set", "workers=3")
    assert joined.returncode == 0, joined.stderr
    assert all(f"rank {rank} of 3 on w{rank}" in joined.stdout for rank in range(3))
    summary = summary_of(tmp_path / "joined")
    assert not any("mpirun" in each for each in [*summary["reasons"], *summary["notes"]])
    assert all(link["bytes"] > 2**20 for link in summary["links"])
    assert [worker["name"] for worker in summary["command"]["workers"]] == ["w0"]
    assert nothing_is_left(summary["run_id"])


def test_rank_0_reads_what_the_command_is_given(tmp_path: Path) -> None:
    options = argv(tmp_path, ["sh", "-c", "cat; echo end"], "--stdin")
    done = subprocess.run(options, input="one\ntwo\n", capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("[w0]")] == ["[w0] one", "[w0] two", "[w0] end"]
    assert [line for line in lines if line.startswith("[w1]")] == ["[w1] end"]


def test_a_terminal_that_goes_away_ends_the_run_in_order(tmp_path: Path) -> None:
    master, terminal = pty.openpty()
    script = "trap 'echo hung up; exit 0' HUP; echo ready; while :; do sleep 0.1; done"
    command = argv(tmp_path, ["sh", "-c", script])
    running = subprocess.Popen(
        ["setsid", "--ctty", *command], stdin=terminal, stdout=terminal, stderr=terminal, close_fds=True
    )
    os.close(terminal)
    seen = b""
    while seen.count(b"ready") < 2:
        seen += os.read(master, 4096)
    os.close(master)  # the kernel sends SIGHUP, and who writes gets EIO
    assert running.wait(timeout=60) == 130
    summary = summary_of(tmp_path)
    assert summary["reasons"] == ["interrupted by SIGHUP"]
    (logs,) = tmp_path.glob("*/logs")
    assert [(logs / f"w{rank}.log").read_text() for rank in (0, 1)] == ["ready\nhung up\n"] * 2
    assert nothing_is_left(summary["run_id"])


def ask(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [PYTHON, "-m", "testbed", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_it_is_watched_changed_and_interrupted_from_outside(tmp_path: Path) -> None:
    script = "trap 'echo stopped by INT; exit 0' INT; echo ready; while :; do sleep 0.1; done"
    running = subprocess.Popen(
        argv(tmp_path, ["sh", "-c", script]), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    try:
        assert {running.stdout.readline() for _ in range(2)} == {"[w0] ready\n", "[w1] ready\n"}
        (record,) = tmp_path.iterdir()
        run_id = "-".join(record.name.rsplit("-", 2)[1:])
        status = json.loads(ask("status", run_id, "--json").stdout)["runs"][0]
        assert (status["phase"], status["num_workers"], status["record"]) == ("command", 2, str(record))
        assert status["workload"].startswith("command: sh -c")
        changed = ask("link", "set", run_id, "w0->s0", "--rate", "20mbit")
        assert changed.returncode == 0, changed.stderr
        seen = json.loads(ask("top", run_id, "--json").stdout)
        assert seen["status"]["run_id"] == run_id
        assert {link["from"]: link["requested"]["rate"] for link in seen["links"]}["w0"] == "20mbit"
        once = ask("top", run_id, "--once").stdout
        assert "w0 → s0" in once
        assert "20 Mbit/s" in once
    finally:
        begun_s = time.monotonic()
        running.send_signal(signal.SIGINT)
        output, errors = running.communicate(timeout=60)
    assert running.returncode == 130, errors
    assert output.count("stopped by INT") == 2
    assert time.monotonic() - begun_s < 30
    assert nothing_is_left(run_id)
    assert os.listdir(record / "logs")  # noqa: PTH208
