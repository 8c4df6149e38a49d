"""The detectors by name, and a user's own as `module:name`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import Any

from artesian.drift.detector import Detector
from artesian.drift.label_shift import FlexcflLabels, Labels
from artesian.drift.row_shift import KolmogorovSmirnov, MeanDiscrepancy
from artesian.drift.stream_tests import Adwin, Kswin, PageHinkley
from artesian.errors import SettingError, nearest
from artesian.plugins import imported

DETECTORS: dict[str, Callable[..., Detector]] = {
    kind.name: kind for kind in (Labels, FlexcflLabels, Adwin, PageHinkley, Kswin, KolmogorovSmirnov, MeanDiscrepancy)
}


def detector(name: str, **settings: Any) -> Detector:
    """A new detector: one of `DETECTORS`, or a class or function of yours as `module:name`, with these settings."""
    if not isinstance(name, str):
        raise SettingError(f"A detector has a name, not {name!r}", nearest(str(name), DETECTORS))
    if name not in DETECTORS and ":" not in name:
        raise SettingError(f"There is no detector {name!r}", nearest(name, DETECTORS))
    kind = DETECTORS.get(name) or imported(name, {}, "detector")
    _check_settings(name, kind, settings)
    try:
        made = kind(**settings)
    except (ValueError, TypeError) as error:
        raise SettingError(f"The detector {name!r} cannot be made: {error}", "Change its settings") from None
    if not isinstance(made, Detector):
        problem = f"{name} gave a {type(made).__name__}, not a Detector"
        raise SettingError(problem, "A Detector has name, part, observe, reset, state and restore")
    return made


def read_detector(text: str) -> Detector:
    """A new detector from its name and settings as text, such as `ks part=logits level=0.001`."""
    name, *words = text.split() or [""]
    settings: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key or not value:
            raise SettingError(
                f"{word!r} is not a setting of the detector {name!r}", "Write KEY=VALUE, such as level=0.01"
            )
        settings[key] = _value(value)
    return detector(name, **settings)


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _check_settings(name: str, kind: Any, settings: dict[str, Any]) -> None:
    """Refuse a setting that a detector of ours does not have."""
    known = [field.name for field in fields(kind)] if is_dataclass(kind) else []
    for key in settings:
        if known and key not in known:
            raise SettingError(f"The detector {name!r} has no setting {key!r}", nearest(key, known))
