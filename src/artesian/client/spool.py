"""An upload on its way: saved before it is sent, with what its training left behind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from artesian.core import Ensemble, Fit, Notebook, Upload
from artesian.recipes.accepting import Voices


@dataclass(frozen=True)
class Spool:
    """An upload on its way, and the notebook and the models that its training left behind."""

    upload: Upload
    notebook: Notebook
    trained: Voices | None = field(default_factory=Voices)  # None: the only model of the upload

    @classmethod
    def of(cls, fit: Fit) -> Self:
        """What a training gave; a model that is sent as it was trained is kept once."""
        models = [params for _, params in fit.trained]
        same = len(models) == len(fit.upload.models) == 1 and models[0] is fit.upload.params
        return cls(fit.upload, fit.notebook, None if same else Voices.of(fit.trained))

    @property
    def models(self) -> Ensemble:
        """What was trained; nothing where it was only an estimate, or an older version saved it."""
        return ((1.0, self.upload.params),) if self.trained is None else self.trained.ensemble
