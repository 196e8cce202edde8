"""House rules that no linter knows: mirrors, registries, what must and must not stand in the tree."""

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.axes import AXES, ROOT
from tests.selection import MARKS

PACKAGES = ("testbed", "transports", "switch_agg", "experiments")


def tracked(*patterns: str) -> list[Path]:
    done = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in done.stdout.splitlines()]


def test_every_unit_test_mirrors_a_source_file() -> None:
    for test in tracked("tests/unit/**/test_*.py", "tests/unit/*/test_*.py"):
        mirrored = test.relative_to(ROOT / "tests" / "unit")
        name = mirrored.name.removeprefix("test_")
        header = Path(name).with_suffix(".h")  # of a part of an engine in C
        candidates = [ROOT / mirrored.parent / each for each in (name, f"_{name}", header)]
        assert any(path.exists() for path in candidates), f"{test} tests no source file of its name"


TESTED_ELSEWHERE: dict[str, str] = {
    "switch_agg/core.py": "tests/unit/switch_agg/test_aggregator.py",
    "switch_agg/namespaces.py": "tests/integration/test_dataplanes.py",
    "testbed/__main__.py": "tests/end_to_end/test_commands.py",
    "testbed/benchmarks/aggregation.py": "tests/unit/testbed/benchmarks/test_suite.py",
    "testbed/benchmarks/fit.py": "tests/unit/testbed/benchmarks/test_predictions.py",
    "testbed/benchmarks/links.py": "tests/unit/testbed/benchmarks/test_suite.py",
    "testbed/benchmarks/transports.py": "tests/unit/testbed/benchmarks/test_suite.py",
    "testbed/calibration/delays.py": "tests/integration/test_links.py",
    "testbed/calibration/streams.py": "tests/integration/test_links.py",
    "testbed/cli.py": "tests/end_to_end/test_commands.py",
    "testbed/commands/options.py": "tests/end_to_end/test_commands.py",
    "testbed/deployment/background.py": "tests/integration/test_background.py",
    "testbed/deployment/delay_daemon.py": "tests/integration/test_delay_lines.py",
    "testbed/deployment/mininet_nodes.py": "tests/integration/test_deploy.py",
    "testbed/errors.py": "tests/unit/testbed/experiment/test_experiment.py",
    "testbed/experiment/iterative.py": "tests/unit/testbed/experiment/workloads/test_training.py",
    "testbed/hosts/base.py": "tests/integration/test_processes.py",
    "testbed/hosts/fork_server.py": "tests/integration/test_processes.py",
    "testbed/hosts/namespace.py": "tests/integration/test_processes.py",
    "testbed/hosts/holder.py": "tests/integration/test_deploy.py",
    "testbed/hosts/machine_agent.py": "tests/integration/test_several_machines.py",
    "testbed/hosts/naming.py": "tests/integration/test_deploy.py",
    "testbed/measure/observations.py": "tests/end_to_end/test_quickstart.py",
    "testbed/measure/sampler.py": "tests/integration/test_links.py",
    "testbed/measure/settings.py": "tests/integration/test_settings.py",
    "testbed/measure/snapshot.py": "tests/integration/test_background.py",
    "testbed/plan/addressing.py": "tests/unit/testbed/plan/test_plan.py",
    "testbed/plan/direction.py": "tests/unit/testbed/plan/test_plan.py",
    "testbed/plan/forwarding.py": "tests/unit/testbed/experiment/switch_modes/test_base.py",
    "testbed/plan/nodes.py": "tests/integration/test_deploy.py",
    "testbed/plan/requested_links.py": "tests/unit/testbed/experiment/delay_backends/test_base.py",
    "testbed/record/number_text.py": "tests/unit/testbed/report/terminal/test_summary.py",
    "testbed/report/claims/page.py": "tests/unit/testbed/report/claims/test_table.py",
    "testbed/report/claims/terminal.py": "tests/unit/testbed/report/claims/test_table.py",
    "testbed/report/comparison/points.py": "tests/unit/testbed/report/comparison/test_comparison.py",
    "testbed/report/terminal/budget.py": "tests/end_to_end/test_commands.py",
    "testbed/runner/control_service.py": "tests/end_to_end/test_quickstart.py",
    "testbed/runner/sweep_work.py": "tests/unit/testbed/runner/test_sweep.py",
    "testbed/system/environment.py": "tests/end_to_end/test_quickstart.py",
    "testbed/system/native/build.py": "tests/unit/testbed/experiment/delay_backends/test_tap.py",
    "testbed/system/native/layouts.py": "tests/unit/testbed/experiment/delay_backends/test_tap.py",
    "testbed/system/netlink.py": "tests/integration/test_links.py",
    "testbed/traces/table.py": "tests/unit/testbed/traces/formats/test_layers.py",
    "testbed/verdict/facts.py": "tests/unit/testbed/verdict/test_summarize.py",
    "testbed/store/metrics.py": "tests/unit/testbed/store/test_compare.py",
    "testbed/worker/gradient_hook.py": "tests/unit/testbed/experiment/workloads/test_training.py",
    "testbed/worker/parameter_server.py": "tests/integration/test_servers.py",
    "testbed/worker/replay.py": "tests/end_to_end/test_training.py",
    "testbed/worker/synchronisers.py": "tests/end_to_end/test_training.py",
    "testbed/worker/task.py": "tests/end_to_end/test_training.py",
    "testbed/worker/trainer.py": "tests/end_to_end/test_training.py",
    "testbed/worker/training.py": "tests/end_to_end/test_training.py",
    "transports/channels/_rpc/bulk_endpoint.py": "tests/contract/test_channels.py",
    "transports/channels/_rpc/endpoint.py": "tests/contract/test_channels.py",
    "transports/channels/_rpc/grpc_streams.py": "tests/contract/test_channels.py",
    "transports/channels/_rpc/quic_streams.py": "tests/contract/test_channels.py",
    "transports/channels/_tcp/congestion.py": "tests/unit/transports/channels/test_tcp.py",
    "transports/channels/_tcp/endpoint.py": "tests/unit/transports/channels/test_tcp.py",
    "transports/channels/_tcp/mesh.py": "tests/unit/transports/channels/test_tcp.py",
    "transports/channels/_tcp/streams.py": "tests/contract/test_channels.py",
    "transports/channels/_udp/endpoint.py": "tests/unit/transports/channels/test_udp.py",
    "transports/collectives/schedules/direct.py": "tests/contract/test_collectives.py",
    "transports/errors.py": "tests/contract/test_channels.py",
    "transports/execution/point_to_point.py": "tests/simulation/test_point_to_point.py",
    "transports/execution/tensors.py": "tests/contract/test_collectives.py",
    "transports/group.py": "tests/contract/test_channels.py",
    "transports/interfaces.py": "tests/unit/transports/torch_backend/test_autoload.py",
    "transports/torch_backend/process_group.py": "tests/contract/test_process_group.py",
}
"""Sources without a unit test of their own: what needs namespaces, processes or the kernel to mean anything, what is
only reached through another face, and plain data. Each with the test that would notice a fault in it."""


def test_every_source_file_has_a_unit_test_or_a_reason() -> None:
    """The mirror's other side. A value on an axis is tested by what runs over its registry."""
    folders = {*(axis.package.replace(".", "/") for axis in AXES), "switch_agg/dataplanes"}
    missing = []
    for source in tracked("testbed/*.py", "transports/*.py", "switch_agg/*.py"):
        path = source.relative_to(ROOT)
        if path.name == "__init__.py" or "_pb2" in path.name or str(path.parent) in folders:
            continue
        names = {f"test_{path.name}", f"test_{path.name.removeprefix('_')}"}
        if not any((ROOT / "tests" / "unit" / path.parent / name).exists() for name in names):
            missing.append(str(path))
    unknown = [path for path in missing if path not in TESTED_ELSEWHERE]
    assert unknown == [], "write a unit test, or say where it is tested"
    assert sorted(TESTED_ELSEWHERE) == sorted(missing), "a reason that is no longer needed"
    assert [test for test in TESTED_ELSEWHERE.values() if not (ROOT / test).exists()] == []


@pytest.mark.parametrize("axis", AXES, ids=lambda axis: axis.axis)
def test_a_file_on_an_axis_registers_one_value_of_its_name(axis) -> None:  # type: ignore[no-untyped-def]
    assert axis.kinds()
    for cls in axis:
        if not cls.__module__.startswith(PACKAGES):
            continue  # another test's own
        assert cls.__module__.rpartition(".")[2] in axis.kinds()
        assert cls.__doc__


def test_folders_that_would_shadow_packages_have_no_init() -> None:
    assert not (ROOT / "tests" / "__init__.py").exists()
    assert not (ROOT / "docker" / "__init__.py").exists()


def test_every_package_is_typed() -> None:
    for package in PACKAGES:
        assert (ROOT / package / "py.typed").exists()


def test_nothing_cleans_by_name_or_runs_a_shell_string() -> None:
    forbidden = re.compile(r"killall|pkill\s|\bmn -c\b|rm -rf? /tmp/\*|shell=True|os\.system\(")
    for path in tracked("*.py", "*.sh", "Makefile", ".ci/run"):
        if path != Path(__file__).resolve():
            assert not forbidden.search(path.read_text()), path


def test_no_unfinished_work_is_left_in_the_packages() -> None:
    unfinished = re.compile(
        r"\b(TODO|FIXME|XXX)\b|raise NotImplementedError|pytest\.(skip|mark\.skip|xfail)|mark\.xfail"
    )
    for path in tracked("*.py"):
        if path != Path(__file__).resolve() and "_pb2" not in path.name:
            assert not unfinished.search(path.read_text()), path


def test_packages_do_not_print() -> None:
    for package in PACKAGES:
        for path in tracked(f"{package}/*.py", f"{package}/**/*.py"):
            assert not re.search(r"^\s*print\(", path.read_text(), re.MULTILINE), path


def test_commands_in_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text()
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z][a-z-]*)", text))
    assert {"demo", "test"} <= named <= targets
    for spec in re.findall(r"experiments/[\w/-]+\.yaml", text):
        assert (ROOT / spec).exists()
    for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text):
        assert (ROOT / picture).exists()


def test_what_runs_before_a_commit_and_on_a_push_is_there() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    for words in (hook["entry"].split() for hook in hooks):
        assert (ROOT / words[0]).exists(), words
        assert all((ROOT / word).exists() for word in words if word.startswith("tests/"))
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "check.yml").read_text())
    commands = "\n".join(step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"])
    targets = {"test", "test-slow", "test-properties"}
    assert {"check"} == set(re.findall(r"\bmake ([a-z-]+)", commands))
    assert "make ${{ matrix.target }}" in commands
    assert all(f'"{target}"' in workflow["jobs"]["test"]["strategy"]["matrix"]["target"] for target in targets)
    makefile = (ROOT / "Makefile").read_text()
    assert all(f"\n{target}:" in makefile for target in targets)


def test_marks_stand_in_the_files_whose_tests_have_them() -> None:
    """For tests/selection.py, by which files are left out whose text has none of what `-m` wants."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert {each.partition(":")[0] for each in settings["markers"]} == set(MARKS)
    elsewhere = re.compile(rf"\bmark\.({'|'.join(MARKS)})\b")
    added = re.compile(r"\b(add_marker|applymarker)\b")
    for path in tracked("tests/*.py"):
        text = path.read_text()
        assert path.name.startswith("test_") or not elsewhere.search(text), path
        assert path == Path(__file__).resolve() or not added.search(text), path


def test_notebooks_are_committed_without_what_they_have_shown() -> None:
    notebooks = tracked("*.ipynb")
    assert notebooks
    for path in notebooks:
        cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
        assert cells
        assert not any(cell["outputs"] or cell["execution_count"] for cell in cells), path
