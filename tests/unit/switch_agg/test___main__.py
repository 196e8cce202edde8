"""The commands as a user runs them: an aggregator on loopback, two workers, and a look at it. What serves is a process
of its own; what asks it, and what is refused, runs in this one."""

import json
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from switch_agg.__main__ import main
from switch_agg.client import Client
from switch_agg.epochs import RESERVED
from switch_agg.job import Job
from tests.here import Done, invoke
from tests.loopback import free_port, own_address
from tests.switchml_client import Config, Controller, Worker, drive

LISTEN = own_address(0)


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


def command(*words: object) -> Done:
    return invoke(*words, script=main)


@contextmanager
def serving(control: Path, *words: str) -> Iterator[list[str]]:
    """A list that has what it said on standard error once it has ended."""
    argv = [sys.executable, "-m", "switch_agg", "serve", "--listen", LISTEN, "--control", str(control), *words]
    said: list[str] = []
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert process.stdout.readline() == f"ready {LISTEN}:48864\n"
            yield said
        finally:  # or the next test finds the address taken
            process.terminate()
        assert process.wait(10) == 0
        said += process.stderr.readlines()


def test_serve_configure_status_top_and_reset(tmp_path: Path) -> None:
    control, port = tmp_path / "agg.sock", free_port()
    job = Job(workers=(own_address(1), own_address(2)), num_elements=64, num_slots=8)
    at = ("--control", str(control))
    with serving(control, "--metrics", str(port)):
        assert (
            command("configure", "--workers", ",".join(job.workers), "--elements", "64", "--slots", "8", *at).returncode
            == 0
        )
        clients = [Client(job, index, (LISTEN, 48864), local=(job.workers[index], 0)) for index in range(2)]

        def work(index: int) -> None:
            clients[index].join()
            clients[index].all_reduce("b", np.ones(1000, np.float32))

        threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (clients[0]._quantizer.result == 2).all()
        found = json.loads(command("status", "--json", *at).stdout)
        assert found["counters"]["done"] == 2 * 16  # the first reduction of a name takes two rounds
        assert found["violations"] == []
        assert sum(found["jobs"][0]["stragglers"]["last"]) == 32
        shown = command("top", "--count", "2", "--interval", "0.1", *at).stdout
        assert "books" in shown
        assert "balance" in shown
        assert "64 int32" in shown
        order = [line.split()[0] for line in shown.splitlines() if line.lstrip().startswith(("rx ", "fresh ", "done "))]
        assert order == ["rx", "fresh", "done"] * (len(order) // 3)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
            assert b"switch_agg_chunks_total 32.0" in page.read()
        before = found["jobs"][0]["epoch"]
        assert command("reset", "0", *at).stdout == f"epoch {(before + 1) % 2**32}\n"
        assert command("inject", '{"up": {"loss": 2}}', *at).returncode == 2
        assert "is being served" in command("configure", "--workers", "127.0.0.1", *at).stderr
        assert command("remove", "0", *at).returncode == 0
        for client in clients:
            client.close()
    assert not control.exists()
    remembered = int((tmp_path / "agg.sock.epoch").read_text())
    assert remembered == (before + RESERVED) % 2**32, "the next aggregator here counts on from there"
    assert command("status", *at).returncode == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_signal_that_ends_a_command_ends_it_in_order(number: signal.Signals, tmp_path: Path) -> None:
    """SIGHUP, of a terminal that goes away, left the control socket."""
    control = tmp_path / "agg.sock"
    argv = [sys.executable, "-m", "switch_agg", "serve", "--listen", LISTEN, "--control", str(control)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"ready {LISTEN}:48864\n"
        assert control.exists()
        process.send_signal(number)
        status = process.wait(10)
    assert not control.exists()
    assert status == 0


def test_clients_of_switchml_are_served_through_their_sessions(tmp_path: Path) -> None:
    """Each client as the original's: its session by gRPC, its datagrams to the address that the answer names."""
    control, metrics, sessions = tmp_path / "agg.sock", free_port(), ("127.0.0.1", free_port())
    at = ("--control", str(control))
    hosts = [own_address(1), own_address(2)]
    values = [np.full(1000, 3 * 2**29, np.int32)] * 2  # 3 x 2^30 wraps around

    def client(rank: int) -> np.ndarray:
        with Controller(sessions) as controller, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
            switch = controller.setup_switch(rank, 2, hosts[rank], 64)
            opened.bind((hosts[rank], 4000))
            worker = Worker(Config(rank=rank, num_workers=2), switch, seed=rank)
            worker.begin(values[rank])
            drive(worker.threads, [opened], lambda: worker.finished, 30.0)
            controller.barrier(2)
            return worker.end()

    words = ("--compatible", "--sessions", f"127.0.0.1:{sessions[1]}", "--metrics", str(metrics))
    with serving(control, *words) as said:
        assert "workers open a session" in command("status", *at).stdout
        with ThreadPoolExecutor(2) as pool:
            for _ in range(2):
                for found in pool.map(client, range(2)):
                    assert set(found.tolist()) == {3 * 2**30 - 2**32}
        status = json.loads(command("status", "--json", *at).stdout)
        assert (status["dataplane"], status["violations"]) == ("switchml", [])
        assert status["counters"]["wrapped"] == status["counters"]["done"] == 2 * 16
        assert [(each["job"]["workers"], each["epoch"]) for each in status["jobs"]] == [(hosts, 2)]
        assert "wrapped around" in command("top", "--count", "1", *at).stdout
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics") as page:
            text = page.read()
        assert b"switch_agg_wrapped_chunks_total 32.0" in text
        assert b"switch_agg_mixed_sums_total 0.0" in text
        refused = command("configure", "--workers", "10.0.0.1", *at)
        assert (refused.returncode, "serves p4app-switchML's clients" in refused.stderr) == (2, True), refused.stderr
        assert "know no epochs" in command("reset", "0", *at).stderr
        assert command("remove", "0", *at).returncode == 0
        assert "not being served" in command("remove", "0", *at).stderr
    assert f"sessions at 127.0.0.1:{sessions[1]}; frames to 00:00:00:00:00:00\n" in said
    assert sum(f"rank 1 of 2 is {hosts[1]}" in line for line in said) == 2


def test_another_aggregator_s_port_is_named(tmp_path: Path) -> None:
    with serving(tmp_path / "a.sock"):
        taken = command("serve", "--compatible", "--listen", LISTEN, "--control", str(tmp_path / "b.sock"))
    assert taken.returncode == 3
    assert f"--listen {LISTEN}, port 48864: Address already in use; another aggregator has it" in taken.stderr


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("serve", "--listen", "127.0.66.9", "--sessions", "127.0.0.1"), 2, "--sessions: has a meaning only with"),
        (("serve", "--listen", "127.0.66.9", "--switch-mac", "x"), 2, "--switch-mac: has a meaning only with"),
        *(
            (("serve", "--listen", "127.0.66.9", *words), 2, f"{words[-2]}: has a meaning only with --dataplane ebpf")
            for words in (
                ("--switch-pid", "1"),
                ("--interface", "lo"),
                ("--elements", "64"),
                ("--payload", "fp16"),
                ("--dataplane", "reference", "--slots", "128"),
                ("--compatible", "--slots", "128"),
            )
        ),
        (
            ("serve", "--listen", "127.0.66.9", "--compatible", "--dataplane", "ebpf"),
            2,
            "--compatible: the data plane ebpf does not serve it; reference does",
        ),
        (
            ("serve", "--listen", "127.0.66.9:48865", "--compatible"),
            2,
            "all of 48864 to 48879 are served; give no port",
        ),
        (("serve", "--listen", "0.0.0.0", "--compatible"), 2, "--listen 0.0.0.0: this address is announced to clients"),
        (("serve", "--listen", "127.0.66.9", "--compatible", "--switch-mac", "x"), 2, "--switch-mac: 'x' is no MAC"),
        (("serve", "--listen", "127.0.66.9", "--compatible", "--sessions", "x:1"), 2, "'x' is no IPv4 address"),
        (
            ("serve", "--listen", "127.0.66.9", "--compatible", "--sessions", "127.0.0.1:0"),
            2,
            "the port is one of 1 to",
        ),
        (("serve", "--listen", "127.0.66.9", "--compatible", "--sessions", "203.0.113.7:5"), 3, "Cannot assign"),
        (("serve", "--listen", "203.0.113.7", "--compatible"), 3, "Cannot assign"),
        (("serve", "--listen", "127.0.0.1:80"), 2, "48864 to 48879"),
        (("serve", "--listen", "127.0.0.1:\N{SUPERSCRIPT TWO}"), 2, "48864 to 48879"),
        (("serve", "--listen", "127.0.0.1", "--dataplane", "ebpf"), 2, "--switch-pid"),
        (("serve", "--listen", "203.0.113.7"), 3, "Cannot assign"),
        (("serve", "--listen", "nowhere"), 2, "--listen nowhere: 'nowhere' is no IPv4 address"),
        (
            ("serve", "--listen", "127.0.66.9", "--dataplane", "ebpf", "--switch-pid", "4194305", "--interface", "lo"),
            2,
            "--switch-pid 4194305: there is no such process",
        ),
        (("configure", "--workers", "a,a"), 2, "--workers: each has a host of its own"),
        (("configure", "--workers", "10.0.0.1", "--elements", "100"), 2, "--elements: a chunk has 32, 64"),
        (
            ("configure", "--workers", "10.0.0.1", "--number", "16"),
            2,
            "--number: input should be less than 16 (got 16)",
        ),
        (
            ("configure", "--workers", "10.0.0.1", "--straggler-timeout", "inf"),
            2,
            "--straggler-timeout: input should be less than or equal to 100 (got inf)",
        ),
        (("inject", '{"upp": {}}'), 2, "upp: there is no such key"),
        (("inject", '{"up": {"loss": 0.7, "duplicate": 0.7}}'), 2, "up: loss, duplicate, reorder and corrupt"),
    ],
)
def test_what_cannot_be_is_one_line(words: tuple[str, ...], status: int, says: str, tmp_path: Path) -> None:
    done = command(*words, "--control", tmp_path / "agg.sock")
    assert (done.returncode, says in done.stderr) == (status, True), done.stderr
    assert done.stderr.startswith("switch-agg: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("number", [16, 99999999999])
@pytest.mark.parametrize("name", ["remove", "reset"])
def test_only_numbers_that_jobs_have_are_taken(name: str, number: int, tmp_path: Path) -> None:
    done = command(name, "--control", tmp_path / "agg.sock", number)
    assert done.returncode == 2
    assert "Invalid value for 'number': Input should be less than or equal to 15" in done.stderr


@pytest.mark.parametrize("words", [("top", "--interval"), ("serve", "--listen", "127.0.66.9", "--link-mbps")])
@pytest.mark.parametrize("value", ["inf", "nan"])
def test_numbers_are_finite(words: tuple[str, ...], value: str, tmp_path: Path) -> None:
    done = command(*words, value, "--control", tmp_path / "agg.sock")
    assert done.returncode == 2
    assert f"Invalid value for '{words[-1]}': Input should be less than or equal to" in done.stderr


def test_nobody_takes_a_socket_over_or_a_file_away(tmp_path: Path) -> None:
    control, other = tmp_path / "agg.sock", own_address(3)
    with serving(control):
        done = command("serve", "--listen", other, "--control", str(control))
        assert done.returncode == 3
        assert "another aggregator is served there" in done.stderr
        taken = command("serve", "--listen", LISTEN, "--control", str(tmp_path / "b.sock"))
        assert taken.returncode == 3
        assert "another aggregator has it" in taken.stderr
        assert command("status", "--control", str(control)).returncode == 0
        unknown = command("configure", "--workers", "foo,bar", "--control", str(control))
        assert (unknown.returncode, "--workers: 'foo' is no IPv4 address" in unknown.stderr) == (2, True)
        assert "configure" in command("status", "--control", str(control)).stdout, "how to begin"
    kept = tmp_path / "notes.txt"
    kept.write_text("mine")
    assert command("serve", "--listen", other, "--control", str(kept)).returncode == 3
    assert kept.read_text() == "mine"
    nowhere = command("serve", "--listen", other, "--control", str(tmp_path / "none" / "agg.sock"))
    assert (nowhere.returncode, "choose another path" in nowhere.stderr) == (3, True), nowhere.stderr
