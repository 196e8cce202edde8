from testbed.links.veth import End, pair_command


def test_a_pair_is_made_between_two_namespaces() -> None:
    first, second = End("w0-eth0", "02:00:00:00:00:02", 4711), End("s0-eth0", "02:00:00:00:00:01", 4712)
    assert pair_command(first, second) == (
        "link add name w0-eth0 address 02:00:00:00:00:02 netns 4711 type veth "
        "peer name s0-eth0 address 02:00:00:00:00:01 netns 4712"
    )
