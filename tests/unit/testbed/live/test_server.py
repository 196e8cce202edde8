import socket

import pytest

import testbed.live.server
from testbed.errors import MissingRequirementError, SpecError
from testbed.live.server import Place, listen, require_framework


def test_a_place_of_its_own_has_a_token_of_its_own() -> None:
    places = []
    for _ in range(2):
        listening, place = listen("127.0.0.1", 0, option="--")
        with listening:
            assert listening.getsockname() == ("127.0.0.1", place.port)
        places.append(place)
    assert len({place.token for place in places}) == 2
    assert all(len(place.token) >= 22 for place in places), "128 bits"
    assert places[0].url == f"http://127.0.0.1:{places[0].port}/{places[0].token}/"


def test_who_listens_beyond_loopback_may_be_called_by_the_machines_name() -> None:
    name = socket.gethostname().lower()
    assert Place(address="127.0.0.1", port=1, token="a").names == {"localhost"}
    assert {"localhost", name} <= Place(address="0.0.0.0", port=1, token="a").names
    assert Place(address="::1", port=1, token="a").url == "http://[::1]:1/a/"


@pytest.mark.parametrize("address", ["localhost", "example.org", "", "127.0.0.1:80"])
def test_an_address_that_is_none_is_an_error(address: str) -> None:
    with pytest.raises(SpecError, match=r"--live-address: .* is no address"):
        listen(address, 0, option="--live-")


def test_an_address_that_is_not_this_machines_is_an_error() -> None:
    with pytest.raises(MissingRequirementError, match=r"--live-port: 192\.0\.2\.1:0 cannot be had"):
        listen("192.0.2.1", 0, option="--live-")


def test_a_missing_framework_is_named_with_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    require_framework()
    monkeypatch.setattr(testbed.live.server, "find_spec", lambda name: None if name == "uvicorn" else object())
    with pytest.raises(MissingRequirementError, match=r"needs uvicorn: pip install 'ina-testbed\[live\]'"):
        require_framework()
