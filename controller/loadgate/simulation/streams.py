"""Where does chance come from? One stream of numbers for each use, all from one seed.

Arrivals, sizes, clients and the gate draw from streams of their own, so that a policy which
refuses more, or draws more, meets the very same requests (common random numbers). A shared
stream makes the differences between policies noisy and lets a limit score better than the
best possible one.
"""

from __future__ import annotations

from random import Random
from zlib import crc32

import numpy as np


def _entropy(seed: int, name: str) -> np.random.SeedSequence:
    # crc32, because `hash` of a string differs from process to process.
    return np.random.SeedSequence([seed, crc32(name.encode())])


def numbers(seed: int, name: str) -> np.random.Generator:
    """Arrays of numbers for what is drawn before the run, from the stream called `name`.

    Args:
        seed: At least 0.
        name: The use, as in ``arrivals/mobile``; equal names give equal numbers.
    """
    return np.random.Generator(np.random.PCG64(_entropy(seed, name)))


def dice(seed: int, name: str) -> Random:
    """Single numbers for what is drawn during the run, from the stream called `name`."""
    return Random(int(_entropy(seed, name).generate_state(2, np.uint64)[0]))
