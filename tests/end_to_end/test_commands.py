"""The commands as a user types them: what they print, what they return, what they leave behind."""

import importlib.metadata
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.machine.budget import keep
from tests.facts import BUDGET
from tests.here import invoke
from transports.units import parse_rate_bps

QUICKSTART = "experiments/quickstart.yaml"


def started(*argv: str, root: bool = True) -> "subprocess.CompletedProcess[str]":
    """In a process of its own, as from a shell."""
    # In a user namespace of its own the process is nobody, and may still read what its owner may.
    prefix = [] if root else ["unshare", "--user"]
    command = [*prefix, sys.executable, "-m", "testbed", *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    "argv",
    [
        ["--help"],
        ["run", "--help"],
        ["exec", "--help"],
        ["top", "--help"],
        ["replay", "--help"],
        ["sweep", "--help"],
        ["bench", "allreduce", "--help"],
        ["clean", "-h"],
    ],
)
def test_help_teaches(argv: list[str]) -> None:
    done = invoke(*argv)
    assert done.returncode == 0
    assert "Exit codes" in done.stdout
    assert "..." not in done.stdout.partition("Commands:")[2], "a command's line is cut off"


def test_the_version_is_the_packages() -> None:
    assert started("--version").stdout == f"testbed {importlib.metadata.version('ina-testbed')}\n"


@pytest.mark.privileged
@pytest.mark.parametrize("argv", [["plan", QUICKSTART], ["schema"], ["plan", QUICKSTART, "--json"]])
def test_these_need_no_root(argv: list[str]) -> None:
    done = started(*argv, root=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.mark.privileged
def test_doctor_without_root_says_so_and_still_examines() -> None:
    done = started("doctor", "--json", root=False)
    assert done.returncode == 3
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert not checks["root"]["ok"]
    assert checks["tc"]["ok"]
    assert "sudo" in checks["root"]["fix"]


@pytest.mark.privileged
def test_doctor_as_root_finds_this_machine_able() -> None:
    done = started("doctor", "--quick")
    assert done.returncode == 0
    assert "htb" in done.stdout


@pytest.mark.privileged
@pytest.mark.quiet  # what the cores carry
def test_doctor_measures_what_the_machine_carries_and_plan_compares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "run `testbed doctor`" in " ".join(invoke("plan", QUICKSTART).stdout.split())
    needs_it = started("validate-dilation", QUICKSTART, "--set", "dilation=auto", "--set", "link.rate=800gbit")
    assert "measured: " in needs_it.stderr, "what is about to run measures by itself, once"
    assert "the greatest is" in needs_it.stderr
    assert (tmp_path / "ina-testbed" / "budget.json").exists()
    budget = json.loads(started("doctor", "--json").stdout)["budget"]
    for carried in (budget["undelayed"], *budget["delayed"].values()):
        assert 0 < carried["mtu_bps"] < carried["superframe_bps"]
    assert budget["delayed"].keys() == budget["delays"].keys() != set()
    assert all(0 <= late["mean_s"] <= late["p99_s"] for late in budget["delays"].values())
    planned = json.loads(invoke("plan", QUICKSTART, "--json").stdout)
    assert planned["budget"]["carries_bps"] == budget["undelayed"]["superframe_bps"]
    refused = invoke("plan", QUICKSTART, "--set", "link.rate=100gbit")
    assert (refused.returncode, "link.rate: w0 -> s0 asks for 100gbit" in refused.stderr) == (3, True)


@pytest.mark.privileged
def test_run_without_root_is_one_clear_line(tmp_path: Path) -> None:
    done = started("run", QUICKSTART, "--output", str(tmp_path), root=False)
    assert done.returncode == 3
    assert "needs root" in done.stderr
    assert "sudo" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_plan_prints_everything_that_would_be_done() -> None:
    done = invoke("plan", QUICKSTART, "--set", "workers=2")
    assert done.returncode == 0
    for words in ("w1-eth0", "10.0.0.6", "tc class add dev s0-eth1", "congctl cubic", "rank 1", "cost model"):
        assert words in done.stdout


def test_plan_as_json_has_the_expected_bytes() -> None:
    plan = json.loads(invoke("plan", QUICKSTART, "--json").stdout)
    assert len(plan["directions"]) == 8
    assert all(direction["expected_bytes"] > 6e6 for direction in plan["directions"])
    assert plan["prediction"]["bound_s"] > 0.4


@pytest.mark.parametrize("argv", [["plan"], ["sweep", "--dry-run", "--output", "{}"]])
def test_the_points_of_a_sweep_are_listed_with_their_predictions_without_running(
    tmp_path: Path, argv: list[str]
) -> None:
    """Into a folder of its own: after `make demo` one of the points has a result in the usual one."""
    command, *options = (each.format(tmp_path) for each in argv)
    done = invoke(command, QUICKSTART, *options, "--set", "sweep.link.rate=[100mbit, 1gbit]", "--json")
    assert done.returncode == 0
    points = json.loads(done.stdout)["points"]
    assert [point["settings"]["link.rate"] for point in points] == ["100mbit", "1gbit"]
    assert points[0]["allreduce_bound_s"] == pytest.approx(10 * points[1]["allreduce_bound_s"])
    assert [point["outcome"] for point in points] == ["not run"] * 2


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["run", QUICKSTART, "--set", "wrokers=3"], "wrokers: unknown key; allowed: name"),
        (["run", QUICKSTART, "--track", "foo:x"], "--track foo:x: write tensorboard:DIR or mlflow:URI"),
        (["bench", "all", "--output", "/proc/nowhere/bench.json"], "--output /proc/nowhere/bench.json: No such file"),
    ],
)
def test_a_wrong_spec_or_line_exits_with_2_before_anything_is_made(argv: list[str], words: str) -> None:
    done = invoke(*argv)
    assert done.returncode == 2
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.privileged
@pytest.mark.parametrize(("program", "package"), [("ifconfig", "net-tools"), ("setpriv", "util-linux")])
def test_a_missing_program_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, package: str
) -> None:
    for folder in os.environ["PATH"].split(os.pathsep):
        for path in Path(folder).glob("*"):
            if path.name != program and not (tmp_path / path.name).is_symlink():
                (tmp_path / path.name).symlink_to(path)
    monkeypatch.setenv("PATH", str(tmp_path))
    done = started("run", QUICKSTART, "--output", str(tmp_path / "results"))
    assert done.returncode == 3
    assert f"{program} is missing: apt-get install --no-install-recommends {package}" in done.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.privileged
def test_a_metrics_port_that_is_taken_is_noticed_before_anything_is_made(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = started("run", QUICKSTART, "--set", f"metrics.port={port}", "--output", str(tmp_path))
    assert done.returncode == 3
    assert f"metrics.port: 127.0.0.1:{port} is in use" in done.stderr
    assert "deploy" not in done.stderr


@pytest.mark.privileged
def test_a_record_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = started("run", QUICKSTART, "--output", str(tmp_path / "file" / "results"))
    assert done.returncode == 3
    assert f"cannot write {tmp_path}/file/results/quickstart-" in done.stderr
    assert "Not a directory" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("argv", [["runn"], ["run", QUICKSTART, "--jsn"]])
def test_a_wrong_command_line_exits_with_2(argv: list[str]) -> None:
    assert invoke(*argv).returncode == 2


def test_schema_describes_every_key() -> None:
    schema = json.loads(invoke("schema").stdout)
    assert {"name", "workers", "link", "collective", "channel", "workload"} <= set(schema["properties"])
    assert schema["required"] == ["name"]


LAYERS = """Id Name Forward Backward Comm Size
0 front 20000 40000 0 500000
1 back 20000 40000 0 500000
"""


@pytest.mark.privileged
@pytest.mark.quiet  # how far off the advice was is looked at where the run stands
def test_advice_is_verified_by_an_emulation_of_what_it_recommends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    keep(BUDGET)
    trace = tmp_path / "mine.layers"
    trace.write_text(LAYERS)
    words = ["advise", trace, "--workers", 2, "--link", "50mbit", "--target", 0.8, "--output", tmp_path / "results"]
    done = invoke(*words, "--verify", "--json")
    advice = json.loads(done.stdout)
    verified = advice["verified"]
    assert advice["recommended"] == "links"
    (recommended,) = (each for each in advice["changes"] if each["change"] == "links")
    assert verified["predicted"] == recommended["scaling_factor"]
    record = Path(verified["record"])
    assert json.loads((record / "summary.json").read_text())["scaling_factor"] == verified["measured"]
    emulated_rate = json.loads((record / "plan.json").read_text())["spec"]["link"]["rate"]
    assert parse_rate_bps(emulated_rate) == recommended["rate_bps"]
    if verified["outcome"] in ("valid", "degraded"):
        assert abs(verified["error"]) < 0.05
        assert done.returncode == 0
