"""Tune what a client drew on its own data before it predicts with it. Nothing of that is sent."""

from __future__ import annotations

from artesian.core import Ensemble, Learner, Plan


def tuned(ensemble: Ensemble, learner: Learner, *, seed: int, plan: Plan) -> Ensemble:
    """The same models, each trained on by this plan; as they are where there are no samples."""
    if not learner.samples:
        return ensemble
    return tuple((weight, learner.train(params, seed=seed, plan=plan)) for weight, params in ensemble)
