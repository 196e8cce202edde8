"""advise on the command line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from testbed.cli import app
from testbed.errors import MissingRequirementError, SpecError
from testbed.experiment.experiment import load
from testbed.machine.budget import keep
from testbed.machine.doctor import plan_in_theory
from tests.facts import BUDGET


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


SPEC = """
name: fast
workers: 4
link: {rate: 100gbit, delay: 5us}
workload: {kind: replay, trace: resnet50}
dilation: auto
metrics: {port: null}
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a network that time must run slower for."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "fast.yaml"
    path.write_text(SPEC)
    return path


def test_automatic_dilation_is_predicted_as_it_is_run(spec: Path) -> None:
    keep(BUDGET)
    automatic = json.loads(run("predict", str(spec), "--json").stdout)
    chosen = plan_in_theory(load(spec, [])).clock.dilation
    assert chosen > 1
    assert automatic["dilation"] == chosen
    assert f"time runs {chosen:g} times slower" in automatic["dilation_reason"]
    said = json.loads(run("predict", str(spec), "--set", f"dilation={chosen:g}", "--json").stdout)
    assert automatic["iteration_time_s"] == said["iteration_time_s"]


def test_automatic_dilation_without_a_measured_machine_names_the_fix(spec: Path) -> None:
    done = run("predict", str(spec))
    assert isinstance(done.exception, MissingRequirementError)
    assert "sudo testbed doctor" in str(done.exception)


def test_automatic_dilation_of_what_cannot_be_dilated_is_refused(spec: Path) -> None:
    done = run("predict", str(spec), "--set", "workload={kind: training}")
    assert isinstance(done.exception, SpecError)
    assert "computes as fast as this machine does" in str(done.exception)


def test_a_codec_that_cannot_be_measured_is_said_not_to_be_in_the_prediction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("testbed.machine.codec_cost.find_spec", lambda _: None)
    path = tmp_path / "compressed.yaml"
    path.write_text(SPEC.replace("dilation: auto", "dilation: 5") + "compression: top_k\n")
    said = "the codec's time is not in the prediction: it is measured with torch, which is not installed here"
    assert said in " ".join(run("predict", str(path)).stdout.split())
    assert json.loads(run("predict", str(path), "--json").stdout)["parts"]["codec_s"] is None
    plain = ("predict", str(path), "--set", "compression=none")
    assert said not in " ".join(run(*plain).stdout.split())
    assert json.loads(run(*plain, "--json").stdout)["parts"]["codec_s"] == 0.0


def test_advice_for_scripts_is_one_json_object() -> None:
    done = run("advise", "resnet50", "--workers", "32", "--link", "10gbit", "--json")
    reported = json.loads(done.stdout)
    assert (reported["kind"], reported["today"]["rate_bps"]) == ("predicted", 10e9)
    assert reported["recommended"] == "links"


def test_advice_says_the_device_and_the_batch_that_it_is_for(tmp_path: Path) -> None:
    words = ("--workers", "32", "--link", "10gbit")
    assert (
        "v100, batch 32, derived from that device's totals; Zhang et al. 2020 (arXiv:2006.10103): V100"
        in run("advise", "resnet50", *words, "--json").stdout
    )
    assert "V100" in run("advise", "resnet50", *words).stdout
    recorded = json.loads(run("advise", "gpt2", "--device", "h100_bf16", "--batch-size", "12", *words, "--json").stdout)
    assert recorded["source"].startswith("h100_bf16, batch 12, recorded on NVIDIA H100 80GB HBM3, torch 2.11.0")
    beyond = run("advise", "gpt2", "--device", "h100", "--batch-size", "64", *words)
    assert isinstance(beyond.exception, SpecError)
    assert str(beyond.exception).startswith("--batch-size: gpt2 was recorded on h100 with 1 to 32 samples (got 64)")
    table = tmp_path / "mine.txt"
    table.write_text("# batch_size=8\n# recorded_on=A100\nId Name Forward Backward Comm Size\n0 a 10 20 - 4000\n")
    reported = json.loads(run("advise", str(table), *words, "--json").stdout)
    assert reported["source"] == f"from {table}, recorded on A100, batch 8"
    table.write_text("Id Name Forward Backward Comm Size\n0 a 10 20 - 4000\n")
    reported = json.loads(run("advise", str(table), *words, "--json").stdout)
    assert reported["source"] == f"from {table}, which names no device, no batch size"


def test_an_iteration_completes_a_trace_without_a_forward_pass(tmp_path: Path) -> None:
    log = tmp_path / "model.bk.log"
    log.write_text("a comment\n1\n2\n10000,400\n20000,8000000\n")
    words = ("advise", str(log), "--workers", "8", "--link", "10gbit")
    alone, completed = (json.loads(run(*words, *more, "--json").stdout) for more in ((), ("--iteration", "97ms")))
    assert alone["today"]["compute_s"] == pytest.approx(0.03)
    assert completed["today"]["compute_s"] == pytest.approx(0.097)
    assert completed["today"]["scaling_factor"] > alone["today"]["scaling_factor"]
    assert "the forward pass" in alone["not_counted"]
    assert "the forward pass" not in completed["not_counted"]
    for arguments, problem in (
        ((*words, "--iteration", "20ms"), "--iteration: backward alone takes 0.03 s"),
        ((*words, "--iteration", "soon"), "--iteration: 'soon' is not a time"),
        (("advise", "resnet50", *words[2:], "--iteration", "1s"), "--iteration: the trace says how long forward takes"),
    ):
        done = run(*arguments)
        assert isinstance(done.exception, SpecError)
        assert problem in str(done.exception)


def test_latency_and_efficiency_count() -> None:
    def scaling_factor(*options: str) -> float:
        done = run("advise", "resnet50", "--workers", "8", "--json", *options)
        return float(json.loads(done.stdout)["today"]["scaling_factor"])

    plain = scaling_factor("--link", "10gbit")
    assert scaling_factor("--link", "10gbit,1ms") < plain
    assert scaling_factor("--link", "10gbit", "--efficiency", "0.5") < plain
    assert scaling_factor("--link", "10gbit", "--batch-size", "64") > plain


def test_a_page_is_written(tmp_path: Path) -> None:
    page = tmp_path / "advice.html"
    done = run("advise", "vgg16", "--workers", "8", "--link", "25gbit", "--page", str(page))
    assert done.exit_code == 0
    assert page.stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["resnet51", "--workers", "2", "--link", "1gbit"], "'resnet51' is neither a network nor a file; networks: al"),
        (["resnet50", "--workers", "1", "--link", "1gbit"], "--workers: 1 has nobody to exchange gradients with; allo"),
        (["resnet50", "--workers", "2", "--link", "0bit"], "--link: a rate of 0 carries nothing"),
        (["resnet50", "--workers", "2", "--link", "fast"], "--link: 'fast' is not a rate"),
        (["resnet50", "--workers", "2", "--link", "1gbit,soon"], "--link: 'soon' is not a time"),
        (["resnet50", "--workers", "2", "--link", "1gbit", "--target", "1"], "--target is 1; it is a share between"),
        (["resnet50", "--workers", "2", "--link", "1gbit", "--efficiency", "0"], "--efficiency is 0; it is a share"),
    ],
)
def test_what_cannot_be_is_refused_by_name(arguments: list[str], problem: str) -> None:
    done = run("advise", *arguments)
    assert isinstance(done.exception, SpecError)
    assert problem in str(done.exception)
