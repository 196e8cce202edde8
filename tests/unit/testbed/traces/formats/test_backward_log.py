"""Backward logs: waits and sizes in the order of backward."""

from pathlib import Path

import pytest

from testbed.traces.formats.backward_log import BackwardLog
from testbed.traces.formats.base import TraceError, read_trace

LOG = "a comment\n1\n3\n1000.5,400\n0,800\n2000,40\n"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "model.bk.log"
    path.write_text(text)
    return path


def test_waits_add_up_to_when_each_gradient_is_ready(tmp_path: Path) -> None:
    table = read_trace(written(tmp_path, LOG))
    assert [tuple(each) for each in table.gradients()] == [
        (pytest.approx(1.0005e-3), 400),
        (pytest.approx(1.0005e-3), 800),
        (pytest.approx(3.0005e-3), 40),
    ]
    assert [layer.name for layer in table.layers] == ["tensor 2", "tensor 1", "tensor 0"]


def test_what_is_left_of_the_iteration_is_forward(tmp_path: Path) -> None:
    table = BackwardLog().read(written(tmp_path, LOG)).with_iteration(5e-3)
    assert table.forward_s == pytest.approx(5e-3 - 3.0005e-3)
    assert table.compute_s == pytest.approx(5e-3)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a comment\n1\n4\n1,400\n2,800\n3,40\n", r":3: 4 tensors are announced and 3 follow"),
        ("a comment\n1\n2\n1,400\n", r":3: 2 tensors are announced and 1 follow"),
        ("a comment\n1\n1\n1 2 3\n", r":4: '1 2 3' is not `wait_us,bytes`"),
        ("a comment\n1\n1\n-1,400\n", r":4: wait_us is -1"),
        ("a comment\n1\n1\n1,4.5\n", r":4: bytes is 4.5"),
        ("a comment\n1\nx\n1,4\n", r":3: the number of tensors is 'x'"),
        ("a comment\n1\n1\n", r"ends before its first tensor"),
        ("a comment\n1\n1\n5,0\n", r"no layer with gradients"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(TraceError, match=problem):
        BackwardLog().read(written(tmp_path, text))
