import struct
from pathlib import Path

import pytest

from testbed.errors import SpecError
from testbed.experiment.experiment import validate
from testbed.measure.capture import captured_links, counts_of, packets_in
from testbed.plan.plan import make_plan

LINKS = make_plan(validate({"name": "t", "workers": 2})).links


def test_a_link_is_captured_at_its_workers_end_whichever_way_it_is_written() -> None:
    assert {link: port.interface for link, port in captured_links(LINKS, ["w1-s0", "s0-w0"]).items()} == {
        "w1-s0": "w1-eth0",
        "w0-s0": "w0-eth0",
    }


@pytest.mark.parametrize("name", ["w7-s0", "w0->s0", ""])
def test_a_link_that_is_not_there_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(SpecError, match=r"--capture .*there is no such link; there are w0-s0, w1-s0"):
        captured_links(LINKS, [name])


def test_dumpcaps_last_lines_give_the_counts() -> None:
    said = (
        "File: a.pcapng\nPackets captured: 117\n"
        "Packets received/dropped on interface 'w1-eth0': 117/3 (pcap:3/dumpcap:0/flushed:0/ps_ifdrop:0) (97.5%)\n"
    )
    assert counts_of(said) == (117, 3)
    with pytest.raises(ValueError, match="did not say"):
        counts_of("Killed")


def block(kind: int, num_bytes: int = 32) -> bytes:
    return struct.pack("=II", kind, num_bytes) + bytes(num_bytes - 12) + struct.pack("=I", num_bytes)


SECTION, INTERFACE, STATISTICS, SIMPLE, ENHANCED = 0x0A0D0D0A, 1, 5, 3, 6


@pytest.mark.parametrize(
    ("blocks", "count"),
    [
        ([], 0),
        ([block(SECTION), block(INTERFACE)], 0),
        ([block(SECTION), block(INTERFACE), block(ENHANCED, 128), block(SIMPLE), block(STATISTICS)], 2),
        ([block(SECTION), *[block(ENHANCED)] * 7, block(ENHANCED, 96)[:-4]], 7),
        ([block(SECTION), block(ENHANCED), block(ENHANCED)[:8]], 1),
        ([block(SECTION), block(ENHANCED), struct.pack("=II", ENHANCED, 0)], 1),
    ],
)
def test_packets_of_a_file_are_its_whole_packet_blocks(tmp_path: Path, blocks: list[bytes], count: int) -> None:
    path = tmp_path / "x.pcapng"
    path.write_bytes(b"".join(blocks))
    assert packets_in(path) == count


def test_a_file_that_is_not_there_holds_none(tmp_path: Path) -> None:
    assert packets_in(tmp_path / "none") == 0
