"""Batches of a made-up client, before and after its data change."""

import numpy as np

from artesian.drift.detector import Batch


def batch(seed: int, samples: int = 100, moved: bool = False) -> Batch:
    """Five labels, six features; after the change two labels, other features, and a model that is mostly wrong."""
    rng = np.random.default_rng(seed)
    return Batch(
        features=rng.normal(2.0 if moved else 0.0, 1.0, (samples, 6)),
        labels=rng.integers(0, 2, samples) + 3 if moved else np.arange(samples) % 5,
        losses=rng.exponential(5.0 if moved else 0.5, samples),
        errors=(rng.random(samples) < (0.9 if moved else 0.1)).astype(np.int64),
        logits=rng.normal(2.0 if moved else 0.0, 1.0, (samples, 3)),
    )


def constant(samples: int = 100) -> Batch:
    """The same sample again and again."""
    numbers, rows = np.full(samples, 1.0), np.full((samples, 6), 3.0)
    return Batch(
        features=rows, labels=np.ones(samples, np.int64), losses=5 * numbers, errors=numbers, logits=rows[:, :3]
    )
