"""Counting errors."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from ttac._arrays import labels as read_labels
from ttac._engine import Model, Session


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What a network or a session was worth on labelled images."""

    samples: int
    """How many images there were."""
    wrong: int
    """How many of them got another class than their own."""
    error_percent: float
    """Wrong predictions over all images, in percent."""
    batch_error_percent: list[float]
    """The same batch by batch, which shows a session learning."""
    confusion: np.ndarray
    """How often each class, by row, got each prediction, by column."""
    warnings: list[str]
    """What somebody should know, in sentences."""
    seconds: float
    """How long the answers took, without the time that the images took to arrive."""


def evaluate(classifier: Model | Session, batches: Iterable[tuple[Any, Any]]) -> Evaluation:
    """Counts the errors of a model as it is, or of a session that learns while it answers.

    `batches` is any iterable of `(images, labels)`. Labels are looked at after the answer, and only to count. An exception of
    the iterable passes through; the session then has learned from the batches before.
    """
    if not isinstance(classifier, (Model, Session)):
        raise TypeError(f"classifier: expected a `ttac.Model` or a `ttac.Session`, found `{type(classifier).__name__}`")
    answer_to = classifier.predict if isinstance(classifier, Model) else classifier.observe
    confusion: np.ndarray | None = None
    errors: list[float] = []
    warnings: list[str] = []
    seconds = 0.0
    for images, true in batches:
        known = np.asarray(read_labels(true), dtype=np.int64)
        start = time.perf_counter()
        answer = answer_to(images)
        seconds += time.perf_counter() - start
        classes = answer.probabilities.shape[1]
        if len(known) != len(answer):
            raise ValueError(f"a batch of {len(answer)} images has {len(known)} labels")
        if known.size and known.max() >= classes:
            raise ValueError(f"labels: expected numbers below {classes}, the classes, found {known.max()}")
        if confusion is None:
            confusion = np.zeros((classes, classes), dtype=np.int64)
        np.add.at(confusion, (known, answer.classes), 1)
        errors.append(100.0 * float(np.mean(answer.classes != known)))
        warnings.extend(answer.warnings)
    if confusion is None:
        raise ValueError("batches: expected at least one batch, found none")
    samples = int(confusion.sum())
    wrong = samples - int(np.trace(confusion))
    return Evaluation(samples, wrong, 100.0 * wrong / samples, errors, confusion, warnings, seconds)
