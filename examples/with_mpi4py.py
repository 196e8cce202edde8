"""MPI: a ring of messages, then Allreduce of a vector. MPI starts its processes itself, from the first host:

testbed exec --launcher --workers 4 --link 1gbit -- mpirun python examples/with_mpi4py.py
"""

import numpy as np
from mpi4py import MPI


def main():
    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    left = world.sendrecv(rank, dest=(rank + 1) % size, source=(rank - 1) % size)
    assert left == (rank - 1) % size
    values = np.full(2**18, rank + 1.0)
    total = np.empty_like(values)
    begin = MPI.Wtime()
    world.Allreduce(values, total)
    took = MPI.Wtime() - begin
    assert (total == size * (size + 1) / 2).all(), "wrong sum"
    print(
        f"rank {rank} of {size} on {MPI.Get_processor_name()}: {values.nbytes} B added in {1e3 * took:.1f} ms",
        flush=True,
    )


if __name__ == "__main__":
    main()
