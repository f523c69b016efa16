import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Anchors",
    "Answer",
    "Gate",
    "Learned",
    "corrupt",
    "corruptions",
    "load_data",
    "run_grid",
    "Model",
    "Session",
    "methods",
    "keep_freed_memory",
    "__version__",
]

__version__: str

_Path = str | os.PathLike[str]
_Triple = Sequence[float]

@final
class Model:
    @staticmethod
    def load(path: _Path) -> Model: ...
    def save(self, path: _Path) -> None: ...
    @staticmethod
    def from_torch(
        net: Any,
        example: Any,
        *,
        mean: _Triple | None = None,
        std: _Triple | None = None,
        normalise: str | None = None,
        classes: Sequence[str] | int | None = None,
        features: str | None = None,
        check: bool = True,
    ) -> Model: ...
    @staticmethod
    def from_export(
        path: _Path,
        *,
        mean: _Triple | None = None,
        std: _Triple | None = None,
        normalise: str | None = None,
        classes: Sequence[str] | int | None = None,
        features: str | None = None,
    ) -> Model: ...
    @staticmethod
    def from_state_dict(
        state_dict: Mapping[str, Any],
        arch: str,
        *,
        mean: _Triple | None = None,
        std: _Triple | None = None,
        normalise: str | None = None,
        classes: Sequence[str] | int | None = None,
        allow_partial: bool = False,
    ) -> Model: ...
    def predict(self, images: Any) -> Answer: ...
    def logits(self, inputs: NDArray[np.float32]) -> NDArray[np.float32]: ...
    def state_dict(self, *, numpy: bool = False) -> dict[str, Any]: ...
    @property
    def classes(self) -> list[str]: ...
    @property
    def architecture(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def image_size(self) -> tuple[int, int] | None: ...
    @property
    def normalisation(self) -> tuple[list[float], list[float]] | None: ...
    @property
    def notes(self) -> list[str]: ...

@final
class Anchors:
    @staticmethod
    def load(path: _Path) -> Anchors: ...
    def save(self, path: _Path) -> None: ...
    @staticmethod
    def collect(
        model: Model,
        batches: Iterable[Any],
        *,
        held_out: Iterable[Any] | None = None,
        labels: Literal["predicted", "true"] = "predicted",
        transform: str = "none",
        class_covariance: Literal["full", "diagonal"] = "full",
        rank: int | None = None,
        batch_size: int = 250,
        seed: int = 0,
        name: str = "python",
    ) -> Anchors: ...
    @property
    def counts(self) -> list[int]: ...
    @property
    def features(self) -> int: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def is_calibrated(self) -> bool: ...

@final
class Session:
    def __new__(
        cls,
        model: Model,
        anchors: Anchors | None = None,
        method: str = "ttac",
        *,
        preset: Literal["recommended", "recommended-0.1", "released"] = "recommended",
        queue: int = 0,
        queue_epochs: int = 4,
        minibatch: int = 256,
        predict_first: bool = False,
        guard: Literal["warn", "stop", "reset"] | Mapping[str, Any] | None = None,
        source_gate: Literal["auto", "open", "off"] | None = None,
        shares: Literal["recent", "lame", "off"] | None = None,
        arrival_rate: float | None = None,
        seed: int = 0,
        **settings: Any,
    ) -> Session: ...
    @staticmethod
    def load(path: _Path, model: Model, anchors: Anchors | None = None) -> Session: ...
    def save(self, path: _Path) -> None: ...
    def observe(self, images: Any) -> Answer: ...
    def predict(self, images: Any) -> Answer: ...
    def reset(self) -> None: ...
    def model(self) -> Model: ...
    def state_dict(self, *, numpy: bool = False) -> dict[str, Any]: ...
    @property
    def batches(self) -> int: ...
    @property
    def drift(self) -> float | None: ...
    @property
    def method(self) -> str: ...
    @property
    def settings(self) -> dict[str, Any]: ...
    @property
    def warnings(self) -> list[str]: ...

@final
class Answer:
    @property
    def classes(self) -> NDArray[np.int64]: ...
    @property
    def probabilities(self) -> NDArray[np.float32]: ...
    @property
    def scores(self) -> NDArray[np.float32]: ...
    @property
    def confidence(self) -> NDArray[np.float32]: ...
    @property
    def learned(self) -> Learned: ...
    @property
    def warnings(self) -> list[str]: ...
    @property
    def gate(self) -> Gate | None: ...
    @property
    def alarm(self) -> str | None: ...
    @property
    def late(self) -> bool: ...
    @property
    def learning_seconds(self) -> float: ...
    @property
    def predicting_seconds(self) -> float: ...
    def __len__(self) -> int: ...

@final
class Learned:
    @property
    def updates(self) -> int: ...
    @property
    def losses(self) -> dict[str, float]: ...
    @property
    def accepted(self) -> int: ...
    @property
    def considered(self) -> int: ...
    @property
    def anchor_distance(self) -> float | None: ...
    @property
    def not_finite(self) -> str | None: ...

@final
class Gate:
    @property
    def open(self) -> bool: ...
    @property
    def opened(self) -> int | None: ...
    @property
    def closed(self) -> int | None: ...

def corrupt(
    images: Any,
    corruption: str,
    severity: int = 5,
    seed: int = 0,
    *,
    first_index: int = 0,
    frost_textures: _Path | None = None,
) -> NDArray[np.uint8]: ...
def corruptions() -> list[str]: ...
def load_data(
    name: str,
    split: Literal["train", "test"] = "test",
    *,
    root: _Path | None = None,
    corruption: str | None = None,
    severity: int | None = None,
    seed: int = 0,
    count: int | None = None,
    size: int = 32,
) -> tuple[NDArray[np.uint8], NDArray[np.int64] | None]: ...
def methods() -> dict[str, str]: ...
def run_grid(grid: str | Mapping[str, Any], out: _Path | None = None) -> list[dict[str, Any]]: ...
def keep_freed_memory() -> None: ...
