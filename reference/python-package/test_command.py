"""The same stream through the package and through the command `ttac` gives the same bits."""

import csv
import subprocess

import numpy as np
import pytest
import safetensors

import ttac
from conftest import ROOT


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        (["--method", "ttac", "--no-queue"], {"method": "ttac"}),
        (["--method", "tent", "--no-queue", "--predict-first"], {"method": "tent", "predict_first": True}),
        (["--method", "ttac", "--queue", "256", "--epochs", "2", "--minibatch", "64"], {"method": "ttac", "queue": 256, "queue_epochs": 2, "minibatch": 64}),
        (
            ["--method", "shot", "--no-queue", "--seed", "3", "--set", "learning_rate=0.002"],
            {"method": "shot", "seed": 3, "learning_rate": 0.002},
        ),
    ],
    ids=["ttac", "tent", "queue", "settings"],
)
def test_a_session_is_the_command_bit_for_bit(command, tmp_path, options, arguments):
    folder = ROOT / "assets/shapes10"
    predictions, adapted = tmp_path / "predictions.csv", tmp_path / "adapted.safetensors"
    run = [command, "adapt", "--model", folder / "model.safetensors", "--anchors", folder / "anchors.safetensors"]
    run += ["--data", "shapes10", "--corruption", "contrast", "--severity", "5", "--subset", "384", "--batch-size", "64"]
    run += [*options, "--predictions", predictions, "--save-model", adapted]
    subprocess.run(run, check=True, capture_output=True)
    with open(predictions, encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    images, _ = ttac.load_data("shapes10", corruption="contrast", severity=5)
    order = [int(row["id"]) for row in rows]
    model = ttac.Model.load(folder / "model.safetensors")
    session = ttac.Session(model, ttac.Anchors.load(folder / "anchors.safetensors"), **arguments)
    classes, confidence = [], []
    for start in range(0, len(order), 64):
        answer = session.observe(images[order[start : start + 64]])
        classes.extend(answer.classes)
        confidence.extend(answer.confidence)
    assert classes == [int(row["predicted"]) for row in rows]
    assert [f"{value:.6f}" for value in confidence] == [row["confidence"] for row in rows]
    expected = ttac.Model.load(adapted).state_dict(numpy=True)
    found = session.state_dict(numpy=True)
    assert list(expected) == list(found)
    for name, values in expected.items():
        assert values.tobytes() == found[name].tobytes(), name


def test_anchors_are_the_commands_bit_for_bit(command, tmp_path):
    folder = ROOT / "assets/shapes10"
    path = tmp_path / "anchors.safetensors"
    run = [command, "anchors", "--model", folder / "model.safetensors", "--data", "shapes10", "--split", "train", "--subset", "1000", "--out", path]
    subprocess.run(run, check=True, capture_output=True)
    model = ttac.Model.load(folder / "model.safetensors")
    images, labels = ttac.load_data("shapes10", "train", count=1000)
    batches = [(images[i : i + 128], labels[i : i + 128]) for i in range(0, 1000, 128)]
    ttac.Anchors.collect(model, batches, name="shapes10").save(tmp_path / "python.safetensors")
    with safetensors.safe_open(path, "numpy") as expected, safetensors.safe_open(tmp_path / "python.safetensors", "numpy") as found:
        # The digest is over the header and all arrays.
        assert found.metadata() == expected.metadata()
        for name in expected.keys():
            assert found.get_tensor(name).tobytes() == expected.get_tensor(name).tobytes(), name


def test_an_evaluation_is_the_commands(command, shipped):
    import json

    model, _ = shipped
    run = [command, "eval", "--model", ROOT / "assets/shapes10/model.safetensors", "--data", "shapes10", "--split", "test"]
    run += ["--corruption", "fog", "--severity", "4", "--subset", "300", "--json"]
    expected = json.loads(subprocess.run(run, check=True, capture_output=True, text=True).stdout)
    images, labels = ttac.load_data("shapes10", corruption="fog", severity=4, count=300)
    found = ttac.evaluate(model, [(images, labels)])
    assert (found.wrong, found.samples, found.error_percent) == (expected["wrong"], expected["samples"], expected["error_percent"])
    assert isinstance(found.confusion, np.ndarray)
