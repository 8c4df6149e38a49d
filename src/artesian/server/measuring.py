"""Measuring uploads in a pool of workers, each of which has built the federation that is served.

Measuring is a pure function of an upload and its receipt, so it may be done anywhere, and again. Uploads come from a
network: they travel to worker processes as text and raw arrays, and nothing is unpickled.
"""

from __future__ import annotations

import logging

import numpy as np

from artesian.core import Evidence, MeasureContext, Receipt, Tree, Upload, derive
from artesian.engine.view import Measure
from artesian.errors import SettingError, WorkerLost
from artesian.execution.pool import WorkerPool
from artesian.execution.worker import Perform
from artesian.server.federation import Federation
from artesian.storage.codec import digest, fingerprint, from_tree, to_tree

LOG = logging.getLogger("artesian.measuring")


def measured_in(pool: WorkerPool) -> Measure:
    """A function that has uploads measured by the workers of a pool."""

    def measure(upload: Upload, receipt: Receipt) -> Evidence:
        try:
            evidence: Evidence = pool.submit({"upload": to_tree(upload), "receipt": to_tree(receipt)}).result()
        except WorkerLost as lost:
            about = {"client": upload.client, "number": upload.number}
            LOG.error("gave up measuring: %s", lost.problem, extra={"fields": about})
            raise WorkerLost(f"The upload could not be measured. {lost.problem}", "Send it again later") from None
        return evidence

    return measure


def measurer(federation: Federation, wanted: str) -> Perform:
    """What measures one upload after another in a worker; refused where its proof is not the server's."""
    if proof(federation) != wanted:
        raise SettingError(
            "A measuring process built a different federation",
            "Give every random draw a seed, and all machines the same files, packages and kind of processor",
        )

    def measure(job: Tree) -> Tree:
        upload, receipt = from_tree(Upload, job["upload"]), from_tree(Receipt, job["receipt"])
        return dict(federation.algorithm.measure(upload, MeasureContext(receipt, federation.proxies)))

    return measure


def proof(federation: Federation) -> str:
    """Equal in two processes that measure alike: the settings, and the losses of one model on every proxy set."""
    probe = federation.model.start(derive(federation.seed, "probe"))
    losses = {k: fingerprint(np.asarray(proxy.losses(probe))) for k, proxy in federation.proxies.items()}
    return digest({"identity": federation.identity, "settings": to_tree(federation.settings), "losses": losses})
