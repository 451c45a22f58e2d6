"""A short test of this rank and its connections, between two epochs: a product of matrices, and exchanges.

It costs some milliseconds, names nobody by itself (the coordinator compares all ranks), and waits for peers
only in calls that a cut ends.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from unicron_hpc.runtime.orders import Exchange, SelfTest

#: Rows and columns of the matrices: a millisecond's work on one core, and on a GPU. Not more than 2048: sums
#: up to that are exact even where a user allows TF32, which keeps 11 bits of what is multiplied.
CPU_SIZE, CUDA_SIZE = 384, 2048
#: The fastest of so many counts: a neighbour on the same core delays one, hardly all.
PRODUCTS, EXCHANGES = 3, 2
#: Bytes of a timed message.
MESSAGE = 128 * 1024


def self_test(group: dist.ProcessGroup, rank: int, world_size: int, device: torch.device) -> SelfTest:
    """Test this rank together with all others of a group.

    Parameters
    ----------
    group
        All ranks that compute.
    rank, world_size
        This rank's number in it, and how many there are.
    device
        Where it computes.

    Raises
    ------
    RuntimeError
        When the group is cut or a peer is lost.
    """
    began = time.perf_counter()
    fastest, right = _multiply(device, rank)
    exchanges = tuple(_exchange(group, rank, peer) for peer in partners(rank, world_size))
    return SelfTest(fastest, right, exchanges, seconds=time.perf_counter() - began)


def partners(rank: int, world_size: int) -> list[int]:
    """The other ranks that a rank meets, in order: those along the edges of a hypercube.

    Every pair comes up on both sides in the same round, so nobody waits in a circle.
    """
    rounds = max(0, world_size - 1).bit_length()
    return [peer for bit in range(rounds) if (peer := rank ^ (1 << bit)) < world_size]


def _multiply(device: torch.device, rank: int) -> tuple[float, bool]:
    """Fastest product, and whether it is right: small integers, so every sum is exact in any order."""
    size = CPU_SIZE if device.type == "cpu" else CUDA_SIZE
    numbers = torch.arange(size * size, device=device, dtype=torch.float32).view(size, size)
    left = torch.remainder(numbers * 7 + rank, 3) - 1
    right, product, fastest = left.t(), left, float("inf")
    for _ in range(PRODUCTS):  # in a fresh process the first one also prepares the library
        _wait(device)
        began = time.perf_counter()
        product = left @ right
        _wait(device)
        fastest = min(fastest, time.perf_counter() - began)
    # Freivalds' check costs next to nothing: (AB)x = A(Bx), again in exact integers.
    probe = torch.remainder(numbers[0], 3) - 1
    return fastest, bool(torch.equal(product @ probe, left @ (right @ probe)))


def _exchange(group: dist.ProcessGroup, rank: int, peer: int) -> Exchange:
    """Fastest of a few messages each way at once; in the first one each waits for the other to come."""
    count = MESSAGE // 4
    outgoing, expected = _pattern(rank, count), _pattern(peer, count)
    fastest, intact = float("inf"), True
    for _ in range(EXCHANGES):
        incoming = torch.zeros(count)
        began = time.perf_counter()
        _swap(group, peer, outgoing, incoming)
        fastest = min(fastest, time.perf_counter() - began)
        intact = intact and bool(torch.equal(incoming, expected))
    return Exchange(peer, fastest, intact)


def _swap(group: dist.ProcessGroup, peer: int, outgoing: torch.Tensor, incoming: torch.Tensor) -> None:
    works = (
        dist.isend(outgoing, group=group, group_dst=peer),
        dist.irecv(incoming, group=group, group_src=peer),
    )
    for work in works:
        if work is not None:  # None: this process is no member, which a caller with a rank never is
            work.wait()


def _pattern(rank: int, count: int) -> torch.Tensor:
    """What a rank sends: exact numbers that differ from rank to rank and from place to place."""
    return torch.remainder(torch.arange(count, dtype=torch.float32) + 31 * rank, 8191)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
