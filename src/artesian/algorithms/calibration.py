"""A calibrated estimate of mixtures: four features of an upload, weighed as pretend clients show they should be.

The server draws random mixtures of its proxy samples, trains a copy of the clusters' blend on each for a moment, and so
has uploads whose mixture it knows. A softmax of one linear score, the same for all clusters, is fitted to them:

    score_k = c . f_k, features of the upload v, which began at u, for cluster k with model w_k and proxy set D_k:
    log F(v; D_k);  log F(u; D_k) - log F(v; D_k);  log ||v - w_k||;  the cosine of v - u and w_k - T, T the trunk

each less its mean over the clusters. Pretend clients train on one half of a proxy set; all is measured on the other.
The idea is known as an attack: shadow models that learn to tell label shares from an upload.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import combinations
from math import log
from typing import Any, TypeVar, cast

import numpy as np

from artesian.algorithms.estimation import softmax
from artesian.core import ClusterId, Divisible, Learner, Plan, Stackable, State, derive, generator
from artesian.errors import SettingError
from artesian.params import Layout, Params, combine, cosine, distance, minus

FEATURES = 4
COSINE = 3  # the place of the cosine among them
SAMPLE = 250  # samples of a proxy set that anything is measured on, at most
PRETEND_SAMPLES = 500  # of a pretend client, at most
RIDGE = 1e-2  # on coefficients of features that are scaled to a root mean square of 1
STEPS = 25  # of Newton's method
CLEAR = 0.3  # correlation below which two clusters cannot be told apart
SMALL = 1e-9

Losses = Mapping[ClusterId, float]
Proxies = Mapping[ClusterId, Learner]
Stack = Callable[[Params], Sequence[np.ndarray]]
V = TypeVar("V")


@dataclass(frozen=True)
class Pretended:
    """Features (pretend clients x clusters x features) and the true shares behind them (x clusters)."""

    features: np.ndarray
    shares: np.ndarray

    def newest(self, count: int) -> Pretended:
        return Pretended(self.features[-count:], self.shares[-count:])

    def then(self, more: Pretended) -> Pretended:
        """These and more, if they are of as many clusters; otherwise only the new ones."""
        if self.shares.shape[1:] != more.shares.shape[1:]:
            return more
        return Pretended(*(np.concatenate(p) for p in ((self.features, more.features), (self.shares, more.shares))))


@lru_cache(maxsize=64)
def halves(samples: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of so large a proxy set that pretend clients train on, and a sample of the others to measure on."""
    order = generator("halves", samples).permutation(samples)
    return np.sort(order[: samples // 2]), np.sort(order[samples // 2 :][:SAMPLE])


def mean_losses(params: Params, proxies: Proxies) -> dict[ClusterId, float]:
    """F(w; D_k) for every proxy set, in one pass where that can be."""
    stack = _kept(_stack_of_parts, *proxies.values())
    if stack is None:
        return {k: mean_loss(params, proxy) for k, proxy in proxies.items()}
    return {k: float(losses.mean(dtype=np.float64)) for k, losses in zip(proxies, stack(params), strict=True)}


def mean_loss(params: Params, proxy: Learner) -> float:
    """F(w; D): the mean loss on the half of a proxy set that is measured on."""
    part = _kept(_measured_part, proxy)
    losses = proxy.losses(params)[halves(proxy.samples)[1]] if part is None else part.losses(params)
    return float(losses.mean(dtype=np.float64))


def _measured_part(proxy: Learner) -> Learner | None:
    """The samples of a proxy set that are measured on; None where they cannot be taken apart."""
    return proxy.part(halves(proxy.samples)[1]) if isinstance(proxy, Divisible) else None


def losses_on(params: Params, proxies: Proxies) -> Sequence[np.ndarray]:
    """The loss of every sample of every proxy set, in one pass where that can be."""
    stack = _kept(_stack, *proxies.values())
    return [proxy.losses(params) for proxy in proxies.values()] if stack is None else stack(params)


def _stack(*learners: Learner | None) -> Stack | None:
    """The losses of these learners at once; None where that cannot be."""
    alike = len({type(learner) for learner in learners}) == 1 < len(learners)
    return learners[0].stacked(learners[1:]) if alike and isinstance(learners[0], Stackable) else None


def _stack_of_parts(*proxies: Learner) -> Stack | None:
    """The losses of the samples that are measured on, of all proxy sets at once."""
    return _stack(*(_kept(_measured_part, proxy) for proxy in proxies))


def _kept(make: Callable[..., V], *proxies: Learner) -> V:
    """What is made of these proxy sets, made once."""
    key = make, *map(id, proxies)
    known = _made.get(key)
    if known is not None and all(seen() is proxy for seen, proxy in zip(known[0], proxies, strict=True)):
        return cast(V, known[1])
    found = make(*proxies)
    forget = partial(_forgotten, _made, key)
    with suppress(TypeError):  # a user's own learner may allow no weak reference
        _made[key] = tuple(weakref.ref(proxy, forget) for proxy in proxies), found
    return found


def _forgotten(made: dict[Any, Any], key: object, _: object) -> None:
    made.pop(key, None)


_made: dict[tuple[Any, ...], tuple[tuple[weakref.ref[Learner], ...], Any]] = {}  # by proxy sets, while all of them live


def features_of(
    layout: Layout,
    new: Params,
    base: Params,
    models: Mapping[ClusterId, Params],
    after: Losses,
    before: Losses,
    origin: Params | None = None,
) -> np.ndarray:
    """Rows of features, one for each cluster, less their mean: of an upload that began at `base`.

    The way to a cluster is seen from an origin: the trunk, or else the base.
    """
    change = minus(layout, new, base)
    rows = [
        (
            log(after[k] + SMALL),
            log(before[k] + SMALL) - log(after[k] + SMALL),
            log(distance(layout, new, params) + SMALL),
            cosine(layout, change, minus(layout, params, base if origin is None else origin)),
        )
        for k, params in models.items()
    ]
    found = np.array(rows)
    return found - found.mean(axis=0)


def usual_sizes(features: np.ndarray) -> np.ndarray:
    """How large each feature usually is: the median over uploads of its root mean square over clusters."""
    return np.asarray(np.median(np.sqrt(np.mean(np.square(features), axis=1)), axis=0))


def shares_of(coefficients: np.ndarray, features: np.ndarray) -> np.ndarray:
    """The estimated mixture; of many uploads at once, those of all."""
    return softmax(features @ coefficients)


def fitted(known: Pretended) -> np.ndarray:
    """The coefficients whose shares are nearest the true ones: the least mean divergence, with a small ridge."""
    scale = np.sqrt(np.mean(np.square(known.features), axis=(0, 1)))
    scale = np.where(scale > SMALL, scale, 1.0)
    features = known.features / scale
    found = np.zeros(features.shape[-1])
    for _ in range(STEPS):
        guessed = shares_of(found, features)
        gradient = np.einsum("nk,nkf->f", guessed - known.shares, features) / len(features) + RIDGE * found
        spread = features - np.einsum("nk,nkf->nf", guessed, features)[:, None]
        curvature = np.einsum("nk,nkf,nkg->fg", guessed, spread, spread) / len(features) + RIDGE * np.eye(len(found))
        step = np.linalg.solve(curvature, gradient)
        found = found - step * min(1.0, 2.0 / max(float(np.abs(step).max()), SMALL))
    return found / scale


def alike(guessed: np.ndarray, true: np.ndarray, names: Sequence[ClusterId]) -> list[tuple[ClusterId, ClusterId]]:
    """Pairs of clusters that the estimate cannot tell apart: it hardly follows which of them a client has more of."""
    pairs = combinations(range(len(names)), 2)
    return [(names[i], names[j]) for i, j in pairs if _correlation(guessed, true, i, j) < CLEAR]


def _correlation(guessed: np.ndarray, true: np.ndarray, i: int, j: int) -> float:
    one, two = guessed[:, i] - guessed[:, j], true[:, i] - true[:, j]
    spread = float(one.std() * two.std())
    return float(np.mean((one - one.mean()) * (two - two.mean()))) / spread if spread > SMALL else 0.0


def divergence_of(guessed: np.ndarray, true: np.ndarray) -> float:
    """The mean divergence of the estimates from the true shares."""
    ratios = np.maximum(true, SMALL) / np.maximum(guessed, SMALL)
    return float(np.mean(np.sum(true * np.log(ratios), axis=1)))


def pretend(
    state: State,
    proxies: Proxies,
    plan: Plan,
    count: int,
    rho: float = 0.0,
    samples: int = 0,
    origin: Params | None = None,
) -> Pretended:
    """So many uploads of pretend clients, who begin at blends of the clusters of this state, with so many samples."""
    found = []
    for i in range(count):
        rng = generator(state.seed, "pretend", state.version, i)
        shares, learner = _drawn(rng, proxies, samples)
        found.append((_trained(state, proxies, plan, rng, rho, learner, origin), shares))
    return Pretended(np.array([features for features, _ in found]), np.array([shares for _, shares in found]))


def _trained(
    state: State,
    proxies: Proxies,
    plan: Plan,
    rng: np.random.Generator,
    rho: float,
    learner: Learner,
    origin: Params | None,
) -> np.ndarray:
    """The features of one pretend client."""
    layout, models = state.layout, {k: cluster.params for k, cluster in state.clusters.items()}
    blend = rng.dirichlet(np.ones(len(models))) if rng.random() < 0.5 else np.full(len(models), 1 / len(models))
    base = combine(layout, list(models.values()), blend.tolist())
    pulls = ((rho, base),) if rho else ()
    new = learner.train(base, seed=derive(int(rng.integers(1 << 62)), "pretend"), plan=plan, pulls=pulls)
    after, before = (mean_losses(params, proxies) for params in (new, base))
    return features_of(layout, new, base, models, after, before, origin)


def random_shares(rng: np.random.Generator, clusters: int) -> np.ndarray:
    """The mixture of a pretend client: often of few clusters, sometimes of many."""
    return rng.dirichlet(np.full(clusters, rng.choice([0.3, 1.0])))


def _drawn(rng: np.random.Generator, proxies: Proxies, samples: int) -> tuple[np.ndarray, Learner]:
    """Random shares, and a learner over proxy samples in these shares: so many, and at least half a proxy set."""
    shares = random_shares(rng, len(proxies))
    divided = {k: divisible(k, proxy) for k, proxy in proxies.items()}
    rows = {k: halves(proxy.samples)[0] for k, proxy in proxies.items()}
    size = min(PRETEND_SAMPLES, max(samples, *map(len, rows.values())))
    counts = rng.multinomial(size, shares)
    parts: list[Any] = [
        divided[k].part(rng.choice(own, count, replace=count > len(own)))
        for (k, own), count in zip(rows.items(), counts.tolist(), strict=True)
        if count
    ]
    return counts / size, parts[0].joined(parts[1:])


def divisible(cluster: ClusterId, proxy: Learner) -> Divisible:
    """A proxy set that pretend clients can draw from; refused where they cannot."""
    if not isinstance(proxy, Divisible) or proxy.samples < 2:
        raise SettingError(
            f"The proxy set of {cluster} cannot be divided, which calibrating needs",
            'Give it two samples at least, and its learner part and joined; or set estimator = "paper"',
        )
    return proxy
