import subprocess

from switch_agg.offloads import interface_of, max_segments_from


def test_the_loopback_interface_says_how_many_datagrams_a_message_may_have() -> None:
    assert interface_of("127.0.0.1") == "lo"
    shown = subprocess.run(
        ["ip", "-d", "link", "show", "lo"], check=True, capture_output=True, text=True
    ).stdout.split()
    assert max_segments_from("127.0.0.1") == int(shown[shown.index("gso_max_segs") + 1]) > 1


def test_nobody_has_an_address_of_documentation() -> None:
    assert interface_of("192.0.2.77") is None
    assert max_segments_from("192.0.2.77") == 1
