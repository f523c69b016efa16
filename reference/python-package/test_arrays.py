"""What arrays go in, which are refused and in which words."""

import numpy as np
import pytest

import ttac


@pytest.fixture(scope="module")
def images():
    return ttac.load_data("shapes10", count=8)[0]


def refused(model, batch):
    with pytest.raises((TypeError, ValueError)) as error:
        model.predict(batch)
    return f"{type(error.value).__name__}: {error.value}"


def test_wrong_images_are_refused_with_what_to_do(shipped, images):
    model, _ = shipped
    floats = images.astype(np.float32) / 255
    nan = floats.copy()
    nan[0, 0, 0, 0] = np.nan
    found = {
        "floats": refused(model, floats),
        "nan": refused(model, nan),
        "int64": refused(model, images.astype(np.int64)),
        "channels first": refused(model, images.transpose(0, 3, 1, 2)),
        "grey": refused(model, images[..., 0]),
        "four channels": refused(model, np.zeros((2, 32, 32, 4), np.uint8)),
        "one image": refused(model, images[0]),
        "another size": refused(model, np.zeros((2, 24, 32, 3), np.uint8)),
        "none": refused(model, images[:0]),
        "words": refused(model, "images"),
        "nothing": refused(model, None),
    }
    floating = "; pixels of 0 to 1 become bytes by `(255 * images).round().astype('uint8')`, and `ttac.torch.Adapter` takes normalised tensors"
    assert found == {
        "floats": f"TypeError: images: expected uint8, the bytes of RGB pixels, found float32{floating}",
        "nan": f"TypeError: images: expected uint8, the bytes of RGB pixels, found float32{floating}",
        "int64": "TypeError: images: expected uint8, the bytes of RGB pixels, found int64",
        "channels first": "ValueError: images: expected channels last, [n, height, width, 3], found [8, 3, 32, 32]; `images.transpose(0, 2, 3, 1)` has them there",
        "grey": "ValueError: images: expected four axes, [n, height, width, 3], found [8, 32, 32]; one image alone is `images[None]`",
        "four channels": "ValueError: images: expected three channels, [n, height, width, 3], found [2, 32, 32, 4]; grey images are repeated three times",
        "one image": "ValueError: images: expected four axes, [n, height, width, 3], found [32, 32, 3]; one image alone is `images[None]`",
        "another size": "ValueError: image size: expected 32 x 32 pixels for this model, found 24 x 32 in the data",
        "none": "ValueError: invalid batch: expected at least one of images of 32 x 32 pixels, found none",
        "words": "TypeError: images: expected uint8, the bytes of RGB pixels, found <U6",
        "nothing": "TypeError: images: expected uint8, the bytes of RGB pixels, found object",
    }


def test_any_order_in_memory_is_the_same_batch(shipped, images):
    model, _ = shipped
    expected = model.predict(images).scores
    backwards = np.asfortranarray(images)
    strided = np.repeat(images, 2, axis=0)[::2]
    readonly = images.copy()
    readonly.flags.writeable = False
    for same in (backwards, strided, readonly, images.tolist() and memoryview(images)):
        np.testing.assert_array_equal(model.predict(same).scores, expected)


def test_what_has_array_or_dlpack_is_read(shipped, images):
    model, _ = shipped

    class ByArray:
        def __array__(self, dtype=None, copy=None):
            return images

    class ByDlpack:
        def __dlpack__(self, **options):
            return images.__dlpack__(**options)

        def __dlpack_device__(self):
            return images.__dlpack_device__()

    expected = model.predict(images).scores
    for same in (ByArray(), ByDlpack()):
        np.testing.assert_array_equal(model.predict(same).scores, expected)


def test_clouds_are_for_networks_of_clouds(shipped):
    from conftest import ROOT

    model = ttac.Model.load(ROOT / "assets/solids10/model.safetensors")
    assert model.image_size is None and model.normalisation is None
    clouds = np.random.default_rng(0).normal(size=(2, 256, 3))
    assert len(model.predict(clouds)) == 2
    assert "point 5 of cloud 1 of the batch is NaN" in refused(model, _with_nan(clouds))
    assert refused(model, clouds[..., :2]) == "ValueError: clouds: expected [n, points, 3], found [2, 256, 2]"
    assert refused(model, clouds.astype(int)) == "TypeError: clouds: expected float32 coordinates, found int64"


def _with_nan(clouds):
    broken = clouds.copy()
    broken[1, 5, 2] = np.nan
    return broken


def test_labels_are_checked(shipped, stream):
    model, _ = shipped
    images, labels = stream[0]
    for wrong, message in (
        (labels[:-1], "a batch of 64 images has 63 labels"),
        (labels + 5, "expected numbers below 10"),
        (labels - 5, "expected classes from zero on, found -5"),
        (labels.astype(float), "expected integers"),
    ):
        for use in (ttac.evaluate, ttac.Anchors.collect):
            with pytest.raises((TypeError, ValueError), match=message):
                use(model, [(images, wrong)])
    with pytest.raises(ValueError, match="expected at least one batch, found none"):
        ttac.Anchors.collect(model, [])
    with pytest.raises(ValueError, match="found 3 things"):
        ttac.Anchors.collect(model, [(images, labels, labels)])


def test_corruptions_are_those_of_the_data_sets(images):
    noisy, _ = ttac.load_data("shapes10", count=8, corruption="gaussian_noise", severity=3, seed=7)
    np.testing.assert_array_equal(ttac.corrupt(images, "gaussian_noise", severity=3, seed=7), noisy)
    np.testing.assert_array_equal(ttac.corrupt(images[4:], "gaussian_noise", 3, 7, first_index=4), noisy[4:])
    assert ttac.corrupt(images, "frost-like").shape == images.shape
    for arguments, message in (
        (("snwo",), "did you mean `snow`?"),
        (("snow", 6), "expected 1 to 5, found `6`"),
        (("frost",), "`frost` needs its photographs"),
    ):
        with pytest.raises(ValueError) as error:
            ttac.corrupt(images, *arguments)
        assert message in str(error.value)
    assert "snow" in ttac.corruptions()


def test_anchors_are_refused_by_another_model(shipped, stream, tmp_path):
    model, anchors = shipped
    anchors.save(tmp_path / "anchors.safetensors")
    again = ttac.Anchors.load(tmp_path / "anchors.safetensors")
    assert again.counts == anchors.counts and again.fingerprint == model.fingerprint
    other = ttac.Session(model, method="tent")
    other.observe(stream[0][0])
    adapted = other.model()
    adapted.save(tmp_path / "adapted.safetensors")
    with pytest.raises(ValueError, match="anchors do not belong to this model"):
        ttac.Session(ttac.Model.load(tmp_path / "adapted.safetensors"), anchors)


def test_missing_and_foreign_files_say_so(tmp_path):
    with pytest.raises(FileNotFoundError, match="cannot read"):
        ttac.Model.load(tmp_path / "absent.safetensors")
    (tmp_path / "foreign").write_bytes(b"nothing of ours")
    for load in (ttac.Model.load, ttac.Anchors.load):
        with pytest.raises(ValueError, match="is not a"):
            load(tmp_path / "foreign")
    with pytest.raises(ValueError, match="did you mean `shapes10`"):
        ttac.load_data("shape10")


def test_a_grid_is_a_table(shipped, tmp_path):
    from conftest import ROOT

    options = dict(
        model=ROOT / "assets/shapes10/model.safetensors",
        anchors=ROOT / "assets/shapes10/anchors.safetensors",
        data="shapes10",
        corruption=["contrast", "fog"],
        severity=5,
        subset=128,
        batch_size=64,
        no_queue=True,
    )
    table = ttac.bench(rows=[{"method": "test"}, {"method": "tent"}], out=tmp_path, **options)
    assert list(table["row"]) == ["test", "test", "tent", "tent"] and list(table["corruption"]) == ["contrast", "fog"] * 2
    assert (table["samples"] == 128).all() and list(table.columns[:5]) == ["row", "method", "data", "corruption", "error_percent"]
    kept = sorted(tmp_path.iterdir())
    assert len(kept) == 4
    times = [path.stat().st_mtime_ns for path in kept]
    again = ttac.bench(rows=[{"method": "test"}, {"method": "tent"}], out=tmp_path, **options)
    # Seconds are rounded in the last digit when they are read.
    seconds = ["learning_seconds", "predicting_seconds"]
    assert table.drop(columns=seconds).equals(again.drop(columns=seconds)) and times == [path.stat().st_mtime_ns for path in kept]
    with pytest.raises(ValueError, match="unknown option `metod`; did you mean `method`?"):
        ttac.bench(metod="tent", name="x", **options)
    with pytest.raises(TypeError, match="found neither"):
        ttac.bench()
    with pytest.raises(ValueError, match="row `tent`: .*cannot read"):
        ttac.bench(model="absent.safetensors", data="shapes10", method="tent")
