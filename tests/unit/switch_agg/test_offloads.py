import pytest

from switch_agg.offloads import UDP_SEGMENTATION, cuts_messages, interface_of, is_on


def test_the_loopback_interface_passes_messages_on_whole() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert is_on("lo", UDP_SEGMENTATION)
    assert not cuts_messages("127.0.0.1")


def test_nobody_has_an_address_of_documentation() -> None:
    assert interface_of("192.0.2.77") is None
    assert not cuts_messages("192.0.2.77")


def test_what_there_is_not_is_an_error() -> None:
    with pytest.raises(OSError, match="knows no feature tx-nonsense"):
        is_on("lo", "tx-nonsense")
    with pytest.raises(OSError, match="No such device"):
        is_on("nowhere0", UDP_SEGMENTATION)
