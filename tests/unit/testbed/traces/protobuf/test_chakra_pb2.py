import os
import subprocess
import sys
from pathlib import Path

PROTO = Path("testbed/traces/protobuf/chakra.proto")
ROOT = Path(__file__).parents[5]


def test_the_committed_code_is_generated_from_chakra_proto(tmp_path: Path) -> None:
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    # protoc finds its plug-ins on the path: those of this environment.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    argv = [sys.executable, "-m", "grpc_tools.protoc", "-I", ".", *outputs, str(PROTO)]
    subprocess.run(argv, check=True, cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True)
    generated = sorted(each.name for each in (tmp_path / PROTO.parent).iterdir())
    assert generated == ["chakra_pb2.py", "chakra_pb2.pyi", "chakra_pb2_grpc.py", "chakra_pb2_grpc.pyi"]
    for name in generated:
        committed = (ROOT / PROTO).with_name(name).read_text()
        assert committed == (tmp_path / PROTO).with_name(name).read_text(), f"{name} is stale: make proto"
