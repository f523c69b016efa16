"""Networks of PyTorch: in by `torch.export`, out by `load_state_dict`, and inside of a loop that exists already."""

import subprocess
import sys

import numpy as np
import pytest

import ttac

torch = pytest.importorskip("torch")
timm = pytest.importorskip("timm")
torchvision = pytest.importorskip("torchvision")
import ttac.torch as adapting  # noqa: E402

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

# Of different families, small, and at sizes that keep the test short.
NETWORKS = {
    "torchvision.resnet18": (lambda: torchvision.models.resnet18(num_classes=10), 64),
    "torchvision.mobilenet_v2": (lambda: torchvision.models.mobilenet_v2(num_classes=10), 64),
    "torchvision.shufflenet_v2_x0_5": (lambda: torchvision.models.shufflenet_v2_x0_5(num_classes=10), 64),
    "timm.vit_tiny_patch16_224": (lambda: timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=10), 64),
    "timm.convnext_atto": (lambda: timm.create_model("convnext_atto", num_classes=10), 64),
}


def random_net(name):
    """The network with random weights and with running statistics that are not those of a fresh one."""
    torch.manual_seed(0)
    make, side = NETWORKS[name]
    net = make().train()
    with torch.no_grad():
        for _ in range(3):
            net(torch.randn(8, 3, side, side))
        for parameter in net.parameters():
            if parameter.dim() == 1:
                parameter += 0.1 * torch.randn_like(parameter)
    return net.eval(), side


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_come_in_adapt_and_go_back(name):
    net, side = random_net(name)
    model = ttac.Model.from_torch(net, torch.randn(2, 3, side, side), mean=MEAN, std=STD, check=False)
    x = torch.randn(4, 3, side, side)
    with torch.no_grad():
        expected = net(x).numpy()
    found = model.logits(x.numpy())
    difference = np.abs(found - expected).max() / np.abs(expected).max()
    print(f"{name}: largest difference {difference:.1e} of the largest logit")
    assert difference < 1e-4
    weights = net.state_dict()
    for key, tensor in model.state_dict().items():
        assert tensor.dtype == weights[key].dtype and torch.equal(tensor, weights[key]), key
    session = ttac.Session(model, method="tent")
    images = np.random.default_rng(0).integers(0, 256, (8, side, side, 3), dtype=np.uint8)
    session.observe(images)
    net.load_state_dict(session.state_dict(), strict=True)
    before, after = model.state_dict(), net.state_dict()
    assert any(not torch.equal(before[key], after[key]) for key in before)
    # The adapted weights give the same scores in both.
    with torch.no_grad():
        expected = net(x).numpy()
    found = session.model().logits(x.numpy())
    assert np.abs(found - expected).max() / np.abs(expected).max() < 1e-4


class Small(torch.nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3, 2, 1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
        )
        self.head = torch.nn.Linear(16, classes)

    def forward(self, x):
        return self.head(self.body(x))


class Branching(Small):
    def forward(self, x):
        return super().forward(x if x.mean() > 0 else -x)


class Failing(Small):
    def forward(self, x):
        raise ZeroDivisionError("a mistake of the network")


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Small().eval()


@pytest.fixture
def example():
    return torch.randn(2, 3, 32, 32)


def test_the_network_is_left_as_it_was(net, example):
    net.train()
    net.body[1].eval()
    before = {key: tensor.clone() for key, tensor in net.state_dict().items()}
    ttac.Model.from_torch(net, example, mean=MEAN, std=STD)
    assert net.training and not net.body[1].training and net.head.training
    assert all(torch.equal(before[key], tensor) for key, tensor in net.state_dict().items())


def test_what_cannot_be_exported_says_why(example):
    with pytest.raises(ValueError) as error:
        ttac.Model.from_torch(Branching(), example, mean=MEAN, std=STD)
    message = str(error.value)
    assert message.startswith("torch.export cannot take `Branching`: ") and "data-dependent" in message.lower()
    assert "hint: what to try" in message and error.value.__cause__ is not None
    with pytest.raises(ValueError, match="ZeroDivisionError: a mistake of the network"):
        ttac.Model.from_torch(Failing(), example, mean=MEAN, std=STD)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"example": torch.randn(1, 3, 32, 32)}, "expected at least two inputs, found 1"),
        ({"example": torch.randn(2, 1, 32, 32)}, r"expected \[n, 3, height, width\], found \[2, 1, 32, 32\]"),
        ({"example": torch.randn(2, 3, 32, 32).double()}, "expected float32, found torch.float64"),
        ({"example": np.zeros((2, 3, 32, 32))}, "expected a tensor"),
        ({"net": "resnet"}, "expected a `torch.nn.Module`, found `str`"),
        ({"mean": None}, "found a part of them"),
        ({"mean": None, "std": None}, "how images are normalised is missing"),
        ({"mean": None, "std": None, "normalise": "imagenette"}, "`normalise`: expected `imagenet`, .*found `imagenette`"),
        ({"std": (0.2, 0.2, 0.0)}, "is not positive"),
        ({"mean": (0.2, float("nan"), 0.2)}, "is not finite"),
        ({"classes": 7}, "`classes`: expected 10, as the network has scores, found 7"),
        ({"classes": ["a", "b"]}, "found 2"),
    ],
)
def test_wrong_arguments_of_from_torch(net, example, change, message):
    arguments = {"net": net, "example": example, "mean": MEAN, "std": STD, **change}
    with pytest.raises((TypeError, ValueError), match=message):
        ttac.Model.from_torch(**arguments)


def test_a_network_that_is_not_itself_twice_is_found(example):
    class Random(Small):
        def forward(self, x):
            return super().forward(x) + torch.rand(())

    with pytest.raises(ValueError):
        ttac.Model.from_torch(Random(), example, mean=MEAN, std=STD)


def test_a_state_dict_of_a_known_architecture(shipped, stream, tmp_path):
    from conftest import ROOT

    known = ttac.Model.load(ROOT / "assets/cifar10-resnet20/model.safetensors")
    weights = known.state_dict()
    arguments = {"arch": "resnet20-cifar", "normalise": "cifar10"}
    for given in (weights, known.state_dict(numpy=True), {"state_dict": {f"module.{key}": value for key, value in weights.items()}}):
        model = ttac.Model.from_state_dict(given, **arguments)
        assert list(model.state_dict()) == list(weights)
        assert all(torch.equal(model.state_dict()[key], weights[key]) for key in weights)
    missing = {key: value for key, value in weights.items() if key != "fc.bias" and "linear.bias" not in key}
    for wrong, message in (
        (missing, "does not fit"),
        ({**weights, next(iter(weights)): torch.zeros(3)}, "does not fit"),
        ({key: value * float("nan") if value.is_floating_point() else value for key, value in weights.items()}, "NaN"),
        ({}, "expected float tensors, found none"),
        ([], "expected a dictionary of tensors"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            ttac.Model.from_state_dict(wrong, **arguments)
    with pytest.raises(ValueError, match="did you mean `resnet20-cifar`"):
        ttac.Model.from_state_dict(weights, arch="resnet20-cifr", normalise="cifar10")


def test_tensors_are_read_where_they_lie(shipped, stream):
    from ttac._arrays import pixels

    model, _ = shipped
    images, _ = stream[0]
    expected = model.predict(images).scores
    last = torch.from_numpy(images)
    first = last.permute(0, 3, 1, 2)
    for tensor in (last, first, first.contiguous(), last.permute(0, 3, 1, 2)):
        np.testing.assert_array_equal(model.predict(tensor).scores, expected)
    # No copy where the order in memory is the engine's own: `[n, height, width, 3]`, or `channels_last`.
    for tensor in (last, first):
        assert pixels(tensor).__array_interface__["data"][0] == tensor.data_ptr()
    with pytest.raises(ValueError, match="expected one on the CPU"):
        model.predict(torch.empty(2, 32, 32, 3, dtype=torch.uint8, device="meta"))


def normalised(images):
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    return (pixels - torch.tensor(MEAN).view(1, 3, 1, 1)) / torch.tensor(STD).view(1, 3, 1, 1)


def test_an_adapter_answers_as_a_session(net, example, stream):
    model = ttac.Model.from_torch(net, example, mean=MEAN, std=STD)
    session = ttac.Session(model, method="tent", learning_rate=0.01)
    adapter = adapting.Adapter(net, example, mean=MEAN, std=STD, method="tent", learning_rate=0.01)
    assert isinstance(adapter, torch.nn.Module)
    for images, _ in stream:
        x = normalised(images)
        scores = adapter(x)
        np.testing.assert_array_equal(scores.numpy(), session.observe(images).scores)
        assert adapter.answer.learned.updates == 1 and not scores.requires_grad
    np.testing.assert_array_equal(adapter.predict(x).numpy(), session.predict(images).scores)
    before = net.head.weight.clone(), net.body[1].weight.clone()
    adapter.write_back()
    assert torch.equal(before[0], net.head.weight) and not torch.equal(before[1], net.body[1].weight)
    adapter.reset()
    assert adapter.session.batches == 0


def test_an_adapter_refuses_what_are_no_bytes(net, example, stream):
    adapter = adapting.Adapter(net, example, mean=MEAN, std=STD)
    x = normalised(stream[0][0])
    broken = x.clone()
    broken[3, 1, 4, 1] = float("nan")
    for wrong, message in (
        (broken, "expected finite values, found NaN or infinity"),
        (x + 0.5, "expected bytes of 0 to 255"),
        (x * 3, "expected bytes of 0 to 255"),
        (x[:, :2], "expected floats or bytes"),
        (x.numpy(), "expected a tensor"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            adapter(wrong)
    assert adapter.session.batches == 0
    between = normalised(stream[0][0]).clamp(-1, 1) * 0.9
    with pytest.raises(ValueError, match="`quantise=True`"):
        adapter(between)
    adapter.quantise = True
    assert adapter(between).shape == (64, 10)


def test_torch_is_imported_only_where_it_is_needed():
    program = "import sys, ttac; ttac.Session(ttac.shapes10()[0], method='tent'); assert 'torch' not in sys.modules and 'pandas' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
