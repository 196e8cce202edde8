"""Each in a fresh interpreter: what matters is what `import torch` alone does there."""

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

JOIN = """
import datetime, sys, torch, torch.distributed as dist
heavy = ("grpc", "polars", "pydantic", "transports.torch_backend.process_group")
early = [name for name in heavy if name in sys.modules]
assert not early, f"import torch brought in {early}"
dist.init_process_group("testbed", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=2,
                        timeout=datetime.timedelta(seconds=30))
tensor = torch.ones(1000) * (dist.get_rank() + 1)
dist.all_reduce(tensor)
assert tensor.eq(3).all(), tensor
assert dist.get_backend() == "testbed"
"""


def _start(program: str, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"} | environment,
    )


def test_the_entry_point_is_the_one_that_is_installed() -> None:
    (point,) = entry_points(group="torch.backends")
    assert point.value == "transports.torch_backend.autoload:register"


def test_the_backend_is_there_after_import_torch_alone(tmp_path: Path) -> None:
    processes = [_start(JOIN, str(tmp_path / "store"), str(rank)) for rank in range(2)]
    for process in processes:
        output, _ = process.communicate(timeout=90)
        assert process.returncode == 0, output


SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("testbed")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
model(torch.full((2, 4), float(dist.get_rank()))).sum().backward()
assert model.module.weight.grad.eq(1.0).all(), model.module.weight.grad  # the mean of 0 and 2
dist.destroy_process_group()
"""


def test_a_script_under_torchrun_needs_nothing_but_the_name(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    program = "from torch.distributed.run import main; main()"
    arguments = ("--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2", str(script))
    output, _ = (process := _start(program, *arguments)).communicate(timeout=90)
    assert process.returncode == 0, output


def test_import_torch_survives_a_broken_installation_of_ours(tmp_path: Path) -> None:
    # A torch.distributed that refuses the registration: what would happen if its interface changed.
    (tmp_path / "sitecustomize.py").write_text(
        "import builtins\n"
        "real = builtins.__import__\n"
        "def broken(name, globals=None, locals=None, fromlist=(), level=0):\n"
        "    if name == 'torch.distributed' and globals and globals.get('__name__') == "
        "'transports.torch_backend.autoload':\n"
        "        raise ImportError('changed beyond recognition')\n"
        "    return real(name, globals, locals, fromlist, level)\n"
        "builtins.__import__ = broken\n"
    )
    program = "import torch; print(torch.ones(2).sum().item())"
    process = _start(program, PYTHONPATH=str(tmp_path))
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 0, output
    assert "2.0" in output
    assert "'testbed' is not available" in output
    assert "changed beyond recognition" in output


def test_autoload_can_be_switched_off() -> None:
    program = "import torch.distributed as dist; raise SystemExit('testbed' in dist.Backend.backend_list)"
    process = _start(program, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 0, output


@pytest.mark.parametrize("variable", ["TESTBED_COLLECTIVE", pytest.param("TESTBED_CHANNEL", marks=pytest.mark.slow)])
def test_a_wrong_name_in_the_environment_says_what_is_allowed(tmp_path: Path, variable: str) -> None:
    process = _start(JOIN, str(tmp_path / "store"), "0", **{variable: "pigeon"})
    output, _ = process.communicate(timeout=90)
    assert process.returncode != 0
    assert "'pigeon' is not a" in output
    assert "allowed:" in output
