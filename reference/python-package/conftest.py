"""What the tests share: a small network, its images and a stream that it does not know."""

import os
import pathlib

import numpy as np
import pytest

import ttac

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def shipped():
    """The model and the anchors that come with the package."""
    return ttac.shapes10()


@pytest.fixture(scope="session")
def stream():
    """Images under a corruption, in four batches of 64, with their labels."""
    images, labels = ttac.load_data("shapes10", corruption="contrast", severity=5, count=256)
    return [(images[i : i + 64], labels[i : i + 64]) for i in range(0, 256, 64)]


@pytest.fixture
def session(shipped):
    model, anchors = shipped
    return ttac.Session(model, anchors, method="ttac")


@pytest.fixture(scope="session")
def command():
    """The command `ttac` of the same build."""
    path = os.environ.get("TTAC_COMMAND")
    if not path:
        pytest.skip("TTAC_COMMAND does not name the command `ttac`")
    return path


@pytest.fixture
def state():
    """Makes one array of all that a session has learned, to see whether something changed."""

    def read(session):
        values = session.state_dict(numpy=True)
        return np.concatenate([values[name].ravel().astype(np.float64) for name in sorted(values)]).tobytes()

    return read
