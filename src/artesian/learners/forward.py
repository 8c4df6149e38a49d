"""Forward passes: as the network is, in a shorter number format, or compiled.

A format that a processor lacks ends the process there and then, and a compiler may be missing. So these options are
tried in a process of their own first; what fails is left out, with a warning.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import nn

from artesian.errors import BadData, FellBack

Precision = Literal["float32", "bfloat16"]
PRECISIONS = ("float32", "bfloat16")
PATIENCE = 600  # seconds that a trial may take
TRIAL = """
import sys, torch
from torch import nn
option, device = sys.argv[1:]
torch.set_num_threads(1)
net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)).to(device)
x = torch.ones(16, 1, 8, 8, device=device)
if option == "compile":
    with torch.inference_mode():
        found = torch.compile(net.eval())(x)
else:
    with torch.autocast(device, torch.bfloat16):
        found = net(x)
    found.float().square().mean().backward()
sys.exit(0 if bool(torch.isfinite(found).all()) else "it gave numbers that are not finite")
"""


@cache
def refusal(option: str, device: str) -> str | None:
    """Why an option does not work on this machine; None where it does."""
    try:
        ran = subprocess.run(
            [sys.executable, "-c", TRIAL, option, device], capture_output=True, text=True, timeout=PATIENCE
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the trial did not end ({type(error).__name__})"
    if ran.returncode == 0:
        return None
    if ran.returncode < 0:
        return f"the trial was ended by {signal.Signals(-ran.returncode).name}"
    said = [line for line in ran.stderr.splitlines() if line.strip()]
    return said[-1].strip() if said else f"the trial ended with {ran.returncode}"


def sound(wanted: Mapping[str, bool], device: str) -> dict[str, bool]:
    """Which of the wanted options work on this machine; a warning for each that does not."""
    reasons = {option: refusal(option, device) if asked else None for option, asked in wanted.items()}
    for option, reason in reasons.items():
        if reason is not None:
            _warn(f"{option} does not work on this {device}: {reason}")
    return {option: asked and reasons[option] is None for option, asked in wanted.items()}


@dataclass
class Passes:
    """How the networks of a model are run."""

    precision: Precision = "float32"
    compiled: bool = False  # where nothing is learnt

    def learn(self, module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """A pass that a gradient goes back through."""
        if self.precision == "float32":
            return _answer(module, x)
        with torch.autocast(x.device.type, torch.bfloat16):
            return _answer(module, x).float()

    def look(self, module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """A pass that nothing is learnt from."""
        if not self.compiled:
            return self.learn(module, x)
        try:
            return self.learn(_compiled(module), x)
        except Exception as error:  # the compiler's or the network's: the pass without a compiler will show
            found = self.learn(module, x)
            _warn(f"the network cannot be compiled: {_first_line(error)}")
            self.compiled = False
            return found


def _compiled(module: nn.Module) -> nn.Module:
    """The module with its forward compiled, once."""
    if "_artesian_compiled" not in module.__dict__:
        module.__dict__["_artesian_compiled"] = torch.compile(module)  # not as a part of it
    made: nn.Module = module.__dict__["_artesian_compiled"]
    return made


def _answer(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    try:
        output = module(x)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, IndexError) as error:
        reason = _first_line(error)
        raise BadData(
            f"The network failed on a batch of shape {tuple(x.shape)}: {reason}",
            "Check the data, shape and the network",
        ) from error
    if not isinstance(output, torch.Tensor) or not output.ndim or len(output) != len(x):
        got = f"shape {tuple(output.shape)}" if isinstance(output, torch.Tensor) else type(output).__name__
        raise BadData(f"The network answered {len(x)} samples with {got}", "Return one row per sample from its forward")
    return output


def _warn(what: str) -> None:
    warnings.warn(FellBack(f"{what}; it is left out"), stacklevel=3)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
