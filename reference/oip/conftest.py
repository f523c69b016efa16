"""What the tests share: servers of the shipped network, and images for them."""

import contextlib
import io
import json
import os
import pathlib
import signal
import socket
import subprocess

import blake3
import numpy as np
import PIL.Image
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "assets" / "shapes10"
MODEL = "shapes"
SIDE = 32
CLASSES = 10


class Server:
    """A running `ttac serve`."""

    def __init__(self, addresses, log):
        self.rest_url, self.admin_url = addresses["rest"], addresses["admin"]
        self.rest = self.rest_url.split("://")[1]
        self.grpc = addresses["grpc"]
        self.log = log


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def serve(folder, listen="", model=""):
    """Starts the command on free ports, waits for its addresses, and ends it as a service manager does."""
    command = os.environ.get("TTAC_COMMAND")
    if not command:
        pytest.skip("TTAC_COMMAND does not name the command `ttac`")
    port = free_port()
    config, log = folder / "serve.toml", folder / "log"
    config.write_text(
        f"[listen]\ngrpc = {port}\n{listen}\n"
        f"[model.{MODEL}]\nfile = '{SHIPPED}/model.safetensors'\nanchors = '{SHIPPED}/anchors.safetensors'\n{model}\n"
        "[threads]\npredict = 1\nupdate = 1\n"
    )
    arguments = [command, "--json", "serve", str(config), "--rest", "0", "--admin", "0"]
    with log.open("w") as errors:
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        line = process.stdout.readline()
        assert line, f"the server did not start: {log.read_text()}"
        addresses = json.loads(line)
        yield Server({"grpc": f"127.0.0.1:{port}", **addresses}, log)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A server as it is without further settings: the source answers, and what it is sent is learned beside it."""
    with serve(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="session")
def guarded(tmp_path_factory):
    """A server with tokens: `seer` may predict on streams that begin with `cam-`, `boss` may administer, `owner` may do all."""
    folder = tmp_path_factory.mktemp("guarded")
    seer, boss, owner = (blake3.blake3(f"{name}-token".encode()).hexdigest() for name in ("seer", "boss", "owner"))
    (folder / "tokens.toml").write_text(
        f"[[token]]\nname = 'seer'\ndigest = '{seer}'\nroles = ['predict']\nstreams = ['cam-*']\nimages_per_second = 2\n"
        f"[[token]]\nname = 'boss'\ndigest = '{boss}'\nroles = ['admin', 'read']\n"
        f"[[token]]\nname = 'owner'\ndigest = '{owner}'\nroles = ['predict', 'learn', 'feedback', 'read', 'admin']\n"
    )
    with serve(folder, listen="tokens = 'tokens.toml'") as running:
        yield running


@pytest.fixture(scope="session")
def images():
    """Four images of coloured squares on noise, `[4, 32, 32, 3]`."""
    rng = np.random.default_rng(21)
    images = rng.integers(0, 90, (4, SIDE, SIDE, 3), np.uint8)
    for number, image in enumerate(images):
        image[6 + number : 26 - number, 6:26] = [220, 40 * number, 60]
    return images


@pytest.fixture(scope="session")
def files(images):
    """The same as PNG."""

    def png(image):
        file = io.BytesIO()
        PIL.Image.fromarray(image).save(file, "PNG")
        return file.getvalue()

    return [png(image) for image in images]
