from pathlib import Path

import pytest

from testbed.errors import SpecError
from testbed.experiment.machines import load_machines

TWO = """
machines:
  m0: {address: 10.99.0.1, namespace: /run/netns/m0, nodes: [s0, w0]}
  m1: {address: 10.99.0.2, nodes: ["w*"]}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "machines.yaml"
    path.write_text(text)
    return path


def test_a_file_names_two_machines(tmp_path: Path) -> None:
    first, second = load_machines(written(tmp_path, TWO)).machines.items()
    assert first[0] == "m0"
    assert str(first[1].address) == "10.99.0.1"
    assert first[1].nodes == ("s0", "w0")
    assert second[1].namespace is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TWO.replace("10.99.0.2", "here"), "machines.m1.address: "),
        (TWO.replace("10.99.0.2", "fe80::1"), "machines.m1.address: "),
        (TWO.replace('["w*"]', "[]"), "machines.m1.nodes: "),
        (TWO.replace("nodes: [s0, w0]", "hosts: [s0, w0]"), "machines.m0.hosts: "),
        (TWO.replace("10.99.0.2", "10.99.0.1"), "both machines have the address 10.99.0.1"),
        ("machines: {m0: {address: 10.99.0.1, nodes: [w0]}}", "1 machines; allowed: 2"),
        ("m0: {}", "machines"),
        ("- m0", "write `machines:`"),
        ("a: [", "is not YAML"),
    ],
)
def test_a_mistake_is_named_by_its_field(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SpecError) as raised:
        load_machines(written(tmp_path, text))
    assert said in str(raised.value)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"--machines: cannot read .*nowhere\.yaml"):
        load_machines(tmp_path / "nowhere.yaml")
