"""The switch's hardware address: p4app-switchML's clients write whole frames, and learn it from the session service."""

import json
import re
import subprocess
from typing import Any

from switch_agg.errors import JobError


def parse_mac(text: str) -> int:
    """02:00:0a:00:00:09 as a number of 48 bits. Raises JobError."""
    if not re.fullmatch("[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}", text):
        raise JobError(f"{text!r} is no MAC address, such as 02:00:0a:00:00:09")
    return int(text.replace(":", ""), 16)


def mac_of(host: str) -> int:
    """Of the interface that has that IPv4 address; 0, as loopback's, where none is configured with it."""
    interfaces = [each["ifname"] for each in _ip("address", "show", "to", f"{host}/32")]
    return parse_mac(_ip("link", "show", "dev", interfaces[0])[0]["address"]) if interfaces else 0


def _ip(*words: str) -> list[dict[str, Any]]:
    done = subprocess.run(["ip", "-j", *words], capture_output=True, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout or "[]")
    return [each for each in found if each]  # what a filter leaves out is an empty object
