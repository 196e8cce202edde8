import pytest

from switch_agg.errors import JobError
from switch_agg.switchml.addresses import mac_of, parse_mac


def test_loopback_has_no_hardware_address() -> None:
    assert mac_of("127.0.0.1") == mac_of("127.7.7.7") == mac_of("203.0.113.7") == 0


def test_hardware_addresses_are_numbers_of_48_bits() -> None:
    assert parse_mac("02:00:0a:00:00:0F") == 0x02000A00000F
    for wrong in ("", "02:00:0a:00:00", "02:00:0a:00:00:0g", "2:0:a:0:0:9", "02-00-0a-00-00-09"):
        with pytest.raises(JobError, match="is no MAC address"):
            parse_mac(wrong)
