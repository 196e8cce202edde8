"""A connection to a Ray cluster, and what is agreed with it: which machines are meant, and who knows whose actors."""

import logging
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from testbed.errors import MissingRequirementError
from testbed.system.interruptions import SIGNALS

RESOURCE: Final = "emulation_slot"
NAMESPACE: Final = "testbed"
FIX: Final = "pip install 'ina-testbed[ray]'"
_CONNECT_TIMEOUT_S: Final = 10.0


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """The module `ray`, connected to a cluster. Raises MissingRequirementError."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.exceptions
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise MissingRequirementError(f"the engine ray needs the package ray: {FIX}") from error
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    address = address or os.environ.get("RAY_ADDRESS") or "auto"
    try:
        _require_listener(address)
        ray.init(
            address=address,
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        raise MissingRequirementError(
            f"no Ray cluster to connect to ({reason}); start one with: ray start --head --resources "
            f"'{{\"{RESOURCE}\": 1}}' and on each further machine ray start --address HEAD:6379 --resources "
            f"'{{\"{RESOURCE}\": 1}}', or name it: --engine '{{kind: ray, address: HEAD:6379}}'"
        ) from error
    finally:
        for number, handler in handlers.items():  # Ray has put its own in their place
            signal.signal(number, handler)
    try:
        yield ray
    finally:
        ray.shutdown()


def _require_listener(address: str) -> None:
    """Where an address names a port: Ray itself tries for minutes. Raises OSError, ValueError."""
    if "://" in address:
        raise ValueError(f"{address} is for Ray's client; start the sweep on a machine of the cluster")
    host, colon, port = address.rpartition(":")
    if colon:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S).close()
