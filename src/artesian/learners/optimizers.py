"""The optimisers a plan may name, over one vector: torch's own rules, one pass over memory where that is to be had."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from artesian.core import OptimizerState, Plan, Tree
from artesian.errors import SettingError
from artesian.learners.optimizer_states import closing_state, opening_state, usable

Optimizer = Any  # a torch.optim.Optimizer; the type itself would take a second to import


@dataclass(frozen=True)
class Stepper:
    """An optimiser at work on one vector."""

    step: Callable[[float], Any]  # takes one step at a rate
    state: Callable[[], OptimizerState]  # what it remembers now


def stepper(plan: Plan, weights: torch.Tensor, gradient: torch.Tensor, kept: OptimizerState) -> Stepper:
    """The plan's optimiser, in the state that was kept, or a fresh one: torch's own rules, over one vector."""
    state = opening_state(plan, weights.numel(), kept)
    if plan.optimizer == "adam":
        return _adam(plan, weights, gradient, state)
    if not plan.momentum:
        return _plain(plan, weights, gradient)
    velocity = torch.tensor(state["velocity"], device=weights.device)

    def step(rate: float) -> None:
        if plan.decay:
            gradient.add_(weights, alpha=plan.decay)
        velocity.mul_(plan.momentum).add_(gradient)
        weights.add_(velocity, alpha=-rate)

    return Stepper(step, lambda: closing_state({"velocity": velocity.cpu().numpy()}))


def _plain(plan: Plan, weights: torch.Tensor, gradient: torch.Tensor) -> Stepper:
    """Steps that remember nothing."""

    def step(rate: float) -> None:
        if plan.decay:
            gradient.add_(weights, alpha=plan.decay)
        weights.add_(gradient, alpha=-rate)

    return Stepper(step, dict)


def _adam(plan: Plan, weights: torch.Tensor, gradient: torch.Tensor, state: Mapping[str, Any]) -> Stepper:
    """Adam in torch's fused kernel: one pass over memory, and none of the second that torch.optim takes to import.

    A torch without that kernel, which is no public part of it, steps by torch.optim: the same rule, a little slower,
    and not the same last bits.
    """
    if not hasattr(torch, "_fused_adam_"):
        return _public_adam(plan, weights, gradient, state)
    first, second = (torch.tensor(state[name], device=weights.device) for name in ("first", "second"))
    steps = torch.tensor(float(state["steps"]), device=weights.device)

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

    return Stepper(step, lambda: _moments(steps, first, second))


def _moments(steps: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> OptimizerState:
    return closing_state({"steps": int(steps), "first": first.cpu().numpy(), "second": second.cpu().numpy()})


def _public_adam(plan: Plan, weights: torch.Tensor, gradient: torch.Tensor, state: Mapping[str, Any]) -> Stepper:
    weights.grad = gradient
    made = torch.optim.Adam([weights], plan.rate, weight_decay=plan.decay)
    own = made.state[weights]
    own["step"] = torch.tensor(float(state["steps"]))
    own["exp_avg"], own["exp_avg_sq"] = (torch.tensor(state[k], device=weights.device) for k in ("first", "second"))

    def step(rate: float) -> None:
        made.param_groups[0]["lr"] = rate
        made.step()

    return Stepper(step, lambda: _moments(own["step"], own["exp_avg"], own["exp_avg_sq"]))


def chosen(
    make: Callable[..., Optimizer], weights: torch.Tensor, gradient: torch.Tensor, kept: OptimizerState
) -> Stepper:
    """An optimiser of the client's own choice, in the state that was kept; its rate is its own business."""
    weights.grad = gradient
    made = make([weights])
    if not isinstance(made, torch.optim.Optimizer):
        raise SettingError(
            f"optimizer returned a {type(made).__name__}, not a torch optimiser",
            "Pass a function from parameters to an optimiser",
        )
    name = {"optimizer": f"{type(made).__module__}:{type(made).__qualname__}"}
    _go_on(made, name, weights, kept)
    return Stepper(lambda _: made.step(), lambda: {**name, **_told(made.state[weights])})


def _go_on(made: Optimizer, name: Mapping[str, str], weights: torch.Tensor, kept: OptimizerState) -> None:
    """Put the kept state into an optimiser, if it is of this kind and this size."""
    sizes = {value.shape for value in kept.values() if isinstance(value, np.ndarray) and value.ndim}
    fits = kept.get("optimizer") == name["optimizer"] and sizes <= {weights.shape}
    if usable(kept, kept if fits else name):
        state = {key: _tensor(value) for key, value in kept.items() if key != "optimizer"}
        made.load_state_dict({"state": {0: state}, "param_groups": made.state_dict()["param_groups"]})


def _tensor(value: Tree) -> Any:
    return torch.tensor(value) if isinstance(value, np.ndarray) else value


def _told(state: Mapping[str, Any]) -> OptimizerState:
    """The state of a torch optimiser as arrays and numbers; whatever else it holds cannot be kept."""
    told = {key: v.detach().cpu().numpy() if isinstance(v, torch.Tensor) else v for key, v in state.items()}
    for key, value in told.items():
        if not (value is None or isinstance(value, (np.ndarray, int, float, str))):
            raise SettingError(
                f"The state of this optimiser cannot be kept: its {key} is a {type(value).__name__}",
                "Use another optimiser, or set training.keep_optimizer_state = false",
            )
    return closing_state(told)
