"""The package in an environment with NumPy alone: learns from a stream, without PyTorch and pandas."""

import pathlib

import ttac

model, anchors = ttac.shapes10()
images, labels = ttac.load_data("shapes10", corruption="contrast", severity=5, count=512)
batches = [(images[i : i + 64], labels[i : i + 64]) for i in range(0, 512, 64)]
before = ttac.evaluate(model, batches).error_percent
after = ttac.evaluate(ttac.Session(model, anchors), batches).error_percent
assert after < before - 20, (before, after)
try:
    model.state_dict()
except ImportError as error:
    assert "state_dict(numpy=True)" in str(error)
path = pathlib.Path(ttac.__file__).parent / "shapes10" / "model.safetensors"
table = ttac.bench(model=path, data="shapes10", method="tent", no_queue=True, subset=256)
assert isinstance(table, list) and table[0]["samples"] == 256
print(f"ttac {ttac.__version__}: error {before:.1f} % as it is, {after:.1f} % learning")
