"""Dividing models into groups: similarities, spectral clustering, linkage, k-means. Scikit-learn and scipy do the work.

Every function is deterministic: the same input gives the same groups. Groups are arrays of labels from 0 on, one for
each position; whoever calls maps positions back to clients.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from artesian.core import Matrix
from artesian.errors import MissingExtra
from artesian.params import Layout, Params, cosine, dot, norm

TINY = 1e-12  # what a row without any similarity is given


def cosines(layout: Layout, vectors: Sequence[Params]) -> np.ndarray:
    """The cosine of every pair of trainable parts; 1 with oneself, 0 where one is zero."""
    count = len(vectors)
    found = np.eye(count)
    for i in range(count):
        for j in range(i):
            found[i, j] = found[j, i] = cosine(layout, vectors[i], vectors[j])
    return found


def blank_table() -> dict[str, Any]:
    """A table of nobody's vectors."""
    return {"clients": [], "vectors": {}, "norms": np.zeros(0), "cosines": np.eye(0)}


def refreshed(layout: Layout, table: Mapping[str, Any], news: Mapping[str, Params]) -> dict[str, Any]:
    """A table of one vector for every client and the cosines of all pairs; only rows of new vectors are worked out."""
    clients = [*table["clients"], *(client for client in news if client not in table["vectors"])]
    vectors = {**table["vectors"], **news}
    known, count = len(table["clients"]), len(clients)
    norms, cosines = np.zeros(count), np.eye(count)
    norms[:known], cosines[:known, :known] = table["norms"], table["cosines"]
    places = sorted(clients.index(client) for client in news)
    for i in places:
        norms[i] = norm(layout, vectors[clients[i]])
    for i in places:
        for j in set(range(count)) - {j for j in places if j >= i}:
            size = norms[i] * norms[j]
            inner = dot(layout, vectors[clients[i]], vectors[clients[j]]) if size else 0.0
            cosines[i, j] = cosines[j, i] = inner / size if size else 0.0
    return {"clients": clients, "vectors": vectors, "norms": norms, "cosines": cosines}


def square(names: Sequence[str], values: np.ndarray) -> Matrix:
    """A matrix whose rows and columns have the same names."""
    return Matrix(tuple(names), tuple(names), values)


def eigenvalues(affinity: np.ndarray, most: int) -> np.ndarray:
    """The smallest eigenvalues, ascending, of the normalised Laplacian I - D^(-1/2) A D^(-1/2)."""
    rows = affinity.sum(axis=1)
    scale = 1 / np.sqrt(np.where(rows > 0, rows, TINY))
    laplacian = np.eye(len(affinity)) - affinity * scale[:, None] * scale[None, :]
    values: np.ndarray = np.linalg.eigvalsh(laplacian)  # numpy's: a limit on threads set before holds for it
    return values[:most]


def eigengap(values: np.ndarray, first: int) -> tuple[int, float]:
    """(R, gap): the largest step lambda_{R+1} - lambda_R among R = first, first + 1, ...; ties to the smaller R."""
    gaps = np.diff(values)[first - 1 :]
    if not len(gaps):
        return first, 0.0
    best = int(np.argmax(gaps))
    return first + best, float(gaps[best])


def spectral_groups(affinity: np.ndarray, parts: int) -> np.ndarray:
    """So many groups by spectral clustering; an affinity below 0 counts as 0."""
    count = len(affinity)
    if parts >= count:
        return np.arange(count)
    if parts == 1:
        return np.zeros(count, int)
    cluster = _sklearn("cluster")
    method = cluster.SpectralClustering(parts, affinity="precomputed", assign_labels="cluster_qr", random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a graph that falls apart is what we look for
        return _compact(method.fit_predict(np.maximum(affinity, TINY)))


def linked_groups(distances: np.ndarray, parts: int) -> np.ndarray:
    """So many groups by agglomerative clustering with complete linkage."""
    count = len(distances)
    if parts >= count:
        return np.arange(count)
    cluster = _sklearn("cluster")
    return _compact(
        cluster.AgglomerativeClustering(parts, metric="precomputed", linkage="complete").fit_predict(distances)
    )


def kmeans_groups(points: np.ndarray, parts: int, seed: int, most: int = 300) -> np.ndarray:
    """So many groups by k-means++ with `most` iterations; where points coincide, none of the groups stays empty."""
    if parts >= len(points):
        return np.arange(len(points))
    cluster, exceptions = _sklearn("cluster"), _sklearn("exceptions")
    method = cluster.KMeans(parts, n_init=10, max_iter=most, random_state=seed % 2**32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", exceptions.ConvergenceWarning)  # fewer distinct points than groups
        labels: np.ndarray = method.fit_predict(points).astype(int)
    return _reseeded(labels, points, parts)


def left_singular(columns: np.ndarray, count: int) -> np.ndarray:
    """The first left singular vectors, as columns, of a matrix; their signs mean nothing."""
    count = min(count, *columns.shape)
    if count < min(columns.shape):
        svds = _scipy("sparse.linalg").svds
        left, sizes, _ = svds(columns.astype(np.float64), k=count, v0=np.ones(min(columns.shape)))
        found: np.ndarray = left[:, np.argsort(-sizes, kind="stable")]
        return found
    whole: np.ndarray = _scipy("linalg").svd(columns.astype(np.float64), full_matrices=False)[0]
    return whole[:, :count]


def _reseeded(labels: np.ndarray, points: np.ndarray, parts: int) -> np.ndarray:
    """An empty group is given the point furthest from the centre of its own, taken from a group of several."""
    labels = labels.copy()
    for empty in sorted(set(range(parts)) - set(labels.tolist())):
        sizes = np.bincount(labels, minlength=parts)
        centres = np.array(
            [points[labels == k].mean(axis=0) if sizes[k] else np.zeros(points.shape[1]) for k in range(parts)]
        )
        away = np.where(sizes[labels] > 1, np.linalg.norm(points - centres[labels], axis=1), -1.0)
        labels[int(np.argmax(away))] = empty
    return labels


def _compact(labels: np.ndarray) -> np.ndarray:
    """The same groups, numbered from 0 on in the order in which they first appear."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(first))
    compact: np.ndarray = order[inverse]
    return compact


def _sklearn(part: str) -> Any:
    return _library("sklearn", "scikit-learn", part)


def _scipy(part: str) -> Any:
    return _library("scipy", "scipy", part)


def _library(module: str, package: str, part: str) -> Any:
    """Imported when it is needed: the base install does without."""
    import importlib

    try:
        return importlib.import_module(f"{module}.{part}")
    except ModuleNotFoundError:
        raise MissingExtra(package, "clustering") from None
