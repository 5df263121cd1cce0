# SPDX-License-Identifier: Apache-2.0
"""Numbers by which ranks see that they have the same values."""
import torch


def other_rank(engine, world, numbers):
    """The first rank whose numbers are not rank 0's, and which those are.

    Returns (None, []) if there is none. Collective; all ranks get the same.

    numbers: of 64 bits, as many on every rank.
    """
    of_ranks = torch.zeros(world.size, len(numbers), dtype=torch.int64)
    of_ranks[world.rank] = torch.tensor(numbers, dtype=torch.int64)
    engine.sum_over_ranks(of_ranks)
    for rank in range(1, world.size):
        others = (of_ranks[rank] != of_ranks[0]).nonzero().flatten().tolist()
        if others:
            return rank, others
    return None, []


def hash_of(tensor):
    """A number of 64 bits that depends on all bits of all elements."""
    size = 1 << 20  # elements at a time
    flat = tensor.detach().flatten()
    bits = flat.view({1: torch.uint8, 2: torch.int16}.get(
        flat.element_size(), torch.int32))
    numbers = torch.arange(min(size, len(bits)), device=flat.device)
    result = 0
    for piece in bits.split(size):
        mixed = (piece.to(torch.int64) << 20) ^ numbers[:len(piece)]
        mixed *= 0x5851F42D4C957F2D
        mixed ^= mixed >> 29
        mixed *= 0x14057B7EF767814F
        result = result * 31 + int(mixed.sum())
    return (result + 2**63) % 2**64 - 2**63  # as an int64 has it
