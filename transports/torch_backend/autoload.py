"""The entry point that torch loads at the end of `import torch`: makes the backend's name known, and nothing
else.

After it `torch.distributed.init_process_group("testbed")` works in a script that imports nothing of ours.
`TORCH_DEVICE_BACKEND_AUTOLOAD=0` switches it off. With TESTBED_REDIRECT set, groups of gloo and nccl become ours
(transports.torch_backend.redirection).
"""

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch.distributed as dist

BACKEND: Final = "testbed"


def register() -> None:
    """Register `testbed` as a torch.distributed backend. Light, idempotent, and never raises: it runs in
    every `import torch` of the environment, and torch would refuse to be imported. That it does refuse where groups
    were to be redirected and cannot be: else the numbers would be of another backend than requested."""
    try:
        import torch.distributed as dist

        if dist.is_available() and BACKEND not in dist.Backend.backend_list:
            dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu"])
    except Exception as error:  # noqa: BLE001 - whatever it is, programs that do not use us must still start
        warnings.warn(f"torch.distributed backend {BACKEND!r} is not available: {error!r}", stacklevel=2)
    if record := os.environ.get("TESTBED_REDIRECT"):
        from transports.torch_backend.redirection import install

        install(BACKEND, Path(record))


def _create(backend_options: object, process_group_options: object) -> "dist.ProcessGroup":
    """Called by init_process_group and new_group; only now is the group's code imported."""
    from transports.torch_backend.process_group import create

    return create(backend_options, process_group_options)
