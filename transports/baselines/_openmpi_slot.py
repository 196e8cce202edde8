"""What `mpirun` starts in place of a rank: it lends its identity to a worker that is there already.

An MPI process knows who it is from variables that mpirun sets. This one hands them to the worker of its rank over a
Unix socket, and stays until the worker has finished: to mpirun it is the rank, and to the library the worker is.
Needs nothing outside the standard library, and is run with `-S`: there is one for every rank.
"""

import json
import os
import socket
import sys
from pathlib import Path

_OURS = ("OMPI_", "PMIX_", "PRTE_")
DONE = b"done"
"""What the worker says when it has left MPI in good order."""


def main(directory: str) -> int:
    """Returns 0 when the worker has said that it is done, 1 when it just went."""
    variables = {name: value for name, value in os.environ.items() if name.startswith(_OURS)}
    with socket.socket(socket.AF_UNIX) as worker:
        worker.connect(str(Path(directory) / variables["OMPI_COMM_WORLD_RANK"]))
        worker.sendall(json.dumps(variables).encode() + b"\n")
        return 0 if worker.recv(len(DONE)) == DONE else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
