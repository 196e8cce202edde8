import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

import switch_agg
from switch_agg.payload import PAYLOADS, PayloadName
from switch_agg.scapy_layer import SwitchAgg
from switch_agg.switchml.wire import TYPE as ORIGINAL
from switch_agg.wire import Kind, Packet, decode

LUA = Path(switch_agg.__file__).parent / "wireshark" / "switch_agg.lua"


@given(
    st.sampled_from([Kind.DATA_32, Kind.SATURATED]),
    st.integers(0, 15),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**14 - 1),
    st.integers(-128, 127),
    st.sampled_from([32, 256]),
)
def test_the_layer_and_the_codec_agree(kind: Kind, job: int, chunk: int, slot: int, exponent: int, count: int) -> None:
    elements = np.arange(count, dtype=np.int32) - 5
    packet = Packet(kind, job, 3, chunk, slot=slot, version=1, exponent=exponent, elements=elements)
    built = SwitchAgg(
        kind=int(kind),
        job=job,
        epoch=3,
        chunk=chunk,
        slot=slot,
        version=1,
        exponent=exponent,
        elements=elements.tolist(),
    )
    assert bytes(built) == packet.encode()
    found = UDP(bytes(UDP(sport=4000, dport=0xBEE3) / packet.encode()))[SwitchAgg]
    assert (found.kind, found.job, found.chunk, found.slot, found.exponent) == (kind, job, chunk, slot, exponent)
    assert found.elements == elements.tolist()


def test_control_and_wrong_sizes_can_be_built_too() -> None:
    join = decode(bytes(SwitchAgg(kind=int(Kind.JOIN), chunk=99, slot=2)))
    assert (join.kind, join.chunk, join.slot) == (Kind.JOIN, 99, 2)
    assert bytes(SwitchAgg(size=3, elements=[1]))[0] == 0x93
    original = bytes(SwitchAgg(kind=ORIGINAL, job=0, format=7, chunk=5, elements=[1, *[0] * 63]))
    assert original[:14].hex(" ") == "11 07 00 00 00 05 00 00 80 00 00 00 00 01"
    assert "chunk 7 slot 1.0" in SwitchAgg(chunk=7, slot=1).mysummary()


def test_wireshark_dissects_what_it_should(tmp_path: Path) -> None:
    elements = list(range(-2, 62))
    frame = Ether() / IP(src="10.0.0.1", dst="10.0.0.9")
    sent = [
        frame
        / UDP(sport=4000, dport=0xBEE0)
        / SwitchAgg(job=2, epoch=5, chunk=77, slot=9, version=1, elements=elements),
        frame / UDP(sport=0xBEEF, dport=4000) / SwitchAgg(partial=1, contributions=3, exponent=-4, elements=elements),
        frame / UDP(sport=4000, dport=0xBEE0) / SwitchAgg(kind=int(Kind.JOIN), chunk=4711),
        frame / UDP(sport=4000, dport=0xBEE0) / bytes(SwitchAgg(elements=elements))[:100],
        frame / UDP(sport=4000, dport=0xBEE0) / SwitchAgg(kind=ORIGINAL, format=7, elements=elements),
    ]
    capture = tmp_path / "capture.pcap"
    wrpcap(str(capture), sent)
    names = "kind job epoch chunk version slot exponent partial contributions to_aggregator truncated"
    wanted = [word for name in names.split() for word in ("-e", f"switch_agg.{name}")]
    argv = ["tshark", "-r", str(capture), "-X", f"lua_script:{LUA}", "-T", "fields", *wanted]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert rows[0] == ["9", "2", "5", "77", "1", "9", "-128", "0", "0", "1", ""]
    assert rows[1][6:10] == ["-4", "1", "3", "0"]
    assert rows[2][0] == "2"
    assert rows[2][3] == "4711"
    assert rows[3][10] != ""
    assert rows[4] == ["1", "0", "", "0", "0", "0", "-128", "0", "0", "1", ""]
    shown = subprocess.run([*argv[:5], "-O", "switch_agg"], capture_output=True, text=True, check=True).stdout
    assert shown.count("Element: ") == 64 + 64 + 21 + 64
    listed = subprocess.run(argv[:5], capture_output=True, text=True, check=True).stdout
    assert "data job 2 epoch 5 chunk 77 slot 9.1" in listed
    assert "result job 0" in listed
    assert "data of the original job 0 chunk 0" in listed


@pytest.mark.parametrize("payload", ["fp16", "int8"])
def test_wireshark_reads_narrow_integers_one_by_one(payload: PayloadName, tmp_path: Path) -> None:
    form = PAYLOADS[payload]
    integers = np.arange(32 * form.lanes, dtype=np.int64) - 20
    packet = SwitchAgg(kind=int(form.kind), chunk=3, elements=form.words(integers).tolist())
    capture = tmp_path / "capture.pcap"
    directions = (UDP(sport=4000, dport=0xBEE0), UDP(sport=0xBEE0, dport=4000))
    wrpcap(str(capture), [Ether() / IP(src="10.0.0.1", dst="10.0.0.9") / way / packet for way in directions])
    argv = ["tshark", "-r", str(capture), "-X", f"lua_script:{LUA}", "-T", "fields"]
    wanted = ["-e", "switch_agg.kind", "-e", "switch_agg.element", "-e", "_ws.col.Info"]
    rows = subprocess.run([*argv, *wanted], capture_output=True, text=True, check=True).stdout.splitlines()
    for row, what in zip(rows, (f"data of {form.bits} bits", "result"), strict=True):
        kind, elements, info = row.split("\t")
        assert kind == str(int(form.kind))
        assert [int(each) for each in elements.split(",")] == integers.tolist()
        assert info.startswith(f"{what} job 0")


def test_of_a_message_every_chunk_is_shown(tmp_path: Path) -> None:
    """As on a veth pair, where nothing cuts messages of several datagrams up."""
    chunks = [
        Packet(Kind.DATA_32, 1, 3, chunk, slot=chunk, elements=np.full(32, chunk, np.int32)).encode()
        for chunk in (5, 6, 8)
    ]
    frame = Ether() / IP(src="10.0.0.1", dst="10.0.0.9") / UDP(sport=4000, dport=0xBEE0) / b"".join(chunks)
    wrpcap(str(tmp_path / "message.pcap"), [frame])
    argv = ["tshark", "-r", str(tmp_path / "message.pcap"), "-X", f"lua_script:{LUA}", "-T", "fields"]
    wanted = [word for field in ("switch_agg.chunk", "switch_agg.epoch", "_ws.malformed") for word in ("-e", field)]
    shown = subprocess.run([*argv, *wanted], capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout.splitlines() == ["5,6,8\t3,3,3\t"]
    layer = Ether(bytes(frame))[SwitchAgg]
    assert [layer.getlayer(SwitchAgg, number).chunk for number in (1, 2, 3)] == [5, 6, 8]
    assert layer.getlayer(SwitchAgg, 4) is None
