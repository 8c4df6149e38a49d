"""Data of one's own: a torch Dataset, or anything that gives (image, label), as the world's images.

Run it in this folder: `python own_data.py`. The world turns the images into two clusters and hands them out to clients.
"""

from __future__ import annotations

import numpy as np

import artesian


class Crosses:
    """1,200 noisy 8x8 images of a bar that lies, stands or leans: what a `torch.utils.data.Dataset` would be."""

    def __len__(self) -> int:
        return 1200

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        rng = np.random.default_rng(index)
        label = index % 3
        image = rng.uniform(0, 0.3, (1, 8, 8)).astype(np.float32)  # channels first, as torch has it
        for i in range(8):
            row, column = ((3, i), (i, min(i + 1, 7)), (i, i))[label]
            image[0, row, column] = 1.0
        return image, label


def crosses() -> Crosses:
    """What `world.data = "own_data:crosses"` names."""
    return Crosses()


if __name__ == "__main__":
    changes = ["world.data=own_data:crosses", "world.clusters=2", "world.clients=10", "uploads=60"]
    run = artesian.simulate("digits-4", changes=changes)
    print(run.table())
