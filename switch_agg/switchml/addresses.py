"""The switch's hardware address: p4app-switchML's clients write whole frames, and learn it from the session service."""

import json
import re
import subprocess

from switch_agg.errors import JobError


def parse_mac(text: str) -> int:
    """02:00:0a:00:00:09 as a number of 48 bits. Raises JobError."""
    if not re.fullmatch("[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}", text):
        raise JobError(f"{text!r} is no MAC address, such as 02:00:0a:00:00:09")
    return int(text.replace(":", ""), 16)


def mac_of(host: str) -> int:
    """Of the interface that has that IPv4 address; 0, as loopback's, where none is configured with it."""
    words = ["ip", "-j", "address", "show", "to", f"{host}/32"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    found = [each for each in json.loads(done.stdout or "[]") if each.get("address")]
    return parse_mac(found[0]["address"]) if found else 0
