import pytest

from testbed.errors import SpecError
from testbed.experiment.experiment import validate
from testbed.measure.capture import captured_links, counts_of
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


def test_dumpcaps_last_words_give_the_counts() -> None:
    said = (
        "File: a.pcapng\nPackets captured: 117\n"
        "Packets received/dropped on interface 'w1-eth0': 117/3 (pcap:3/dumpcap:0/flushed:0/ps_ifdrop:0) (97.5%)\n"
    )
    assert counts_of(said) == (117, 3)
    with pytest.raises(ValueError, match="did not say"):
        counts_of("Killed")
