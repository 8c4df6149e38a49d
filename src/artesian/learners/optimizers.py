"""The optimisers a plan may name, over one vector: torch's own rules, one pass over memory where that is to be had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from artesian.core import Plan


def stepper(plan: Plan, weights: torch.Tensor, gradient: torch.Tensor) -> Callable[[float], Any]:
    """A function that takes one step at a rate, with a state of its own: torch's own rules, over one vector."""
    if plan.optimizer == "adam":
        return _adam(plan, weights, gradient)
    velocity = torch.zeros_like(weights) if plan.momentum else None

    def step(rate: float) -> None:
        if plan.decay:
            gradient.add_(weights, alpha=plan.decay)
        if velocity is None:
            weights.add_(gradient, alpha=-rate)
        else:
            velocity.mul_(plan.momentum).add_(gradient)
            weights.add_(velocity, alpha=-rate)

    return step


def _adam(plan: Plan, weights: torch.Tensor, gradient: torch.Tensor) -> Callable[[float], Any]:
    """Adam in torch's fused kernel: one pass over memory, and none of the second that torch.optim takes to import.

    A torch without that kernel, which is no public part of it, steps by torch.optim: the same rule, a little slower,
    and not the same last bits.
    """
    if not hasattr(torch, "_fused_adam_"):
        return _public_adam(plan, weights, gradient)
    first, second = torch.zeros_like(weights), torch.zeros_like(weights)
    steps = torch.zeros((), device=weights.device)

    def step(rate: float) -> None:
        steps.add_(1)
        torch._fused_adam_(  # type: ignore[no-untyped-call,unused-ignore]
            [weights],
            [gradient],
            [first],
            [second],
            [],
            [steps],
            lr=rate,
            beta1=0.9,
            beta2=0.999,
            weight_decay=plan.decay,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    return step


def _public_adam(plan: Plan, weights: torch.Tensor, gradient: torch.Tensor) -> Callable[[float], Any]:
    weights.grad = gradient
    made = torch.optim.Adam([weights], plan.rate, weight_decay=plan.decay)

    def step(rate: float) -> None:
        made.param_groups[0]["lr"] = rate
        made.step()

    return step
