import json
import socket
from pathlib import Path

import pytest

from tests.threads import run_threads
from transports.baselines import _openmpi_slot


@pytest.mark.parametrize(("farewell", "status"), [(_openmpi_slot.DONE, 0), (b"", 1)])
def test_a_slot_lends_its_identity_and_ends_with_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, farewell: bytes, status: int
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    monkeypatch.setenv("PMIX_RANK", "3")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "3"))
        listener.listen()

        def worker(_: None) -> dict[str, str]:
            with listener.accept()[0] as slot, slot.makefile() as lines:
                variables: dict[str, str] = json.loads(lines.readline())
                slot.sendall(farewell)
                slot.shutdown(socket.SHUT_RDWR)
                return variables

        handed_over, ended = run_threads(lambda part: part(None), [worker, lambda _: _openmpi_slot.main(str(tmp_path))])
    assert ended == status
    assert handed_over["PMIX_RANK"] == handed_over["OMPI_COMM_WORLD_RANK"] == "3"
    assert "PATH" not in handed_over
