//! Fixtures made by `reference/parity`: results of PyTorch in float64. Inputs and weights are not
//! stored but computed, here and there, from their names.

use std::collections::BTreeMap;
use std::path::PathBuf;

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use safetensors::SafeTensors;
use serde_json::Value;
use ttac::backbone::map_tensors;

pub fn path(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.join("tests/fixtures").join(name)
}

/// A file of expected results.
pub struct Fixture {
    name: String,
    pub about: Value,
    expected: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
    worst: BTreeMap<String, (f64, String)>,
}

impl Fixture {
    pub fn open(name: &str) -> Self {
        Self::open_in("parity", name)
    }

    pub fn open_in(folder: &str, name: &str) -> Self {
        let path = path(folder).join(name).join("data.safetensors");
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        let about = metadata.metadata().as_ref().unwrap()["about"].as_str();
        let expected = file.tensors().into_iter().map(|(key, view)| {
            let values = view.data().as_chunks::<4>().0;
            let values = values.iter().map(|bytes| f32::from_le_bytes(*bytes));
            (key, (view.shape().to_vec(), values.collect()))
        });
        Self {
            name: name.to_owned(),
            about: serde_json::from_str(about).unwrap(),
            expected: expected.collect(),
            worst: BTreeMap::new(),
        }
    }

    /// An input, by the formula noted in the fixture.
    pub fn input<const D: usize>(&self, name: &str, device: &Device) -> Tensor<D> {
        let inputs = &self.about["inputs"][name];
        let shape: Vec<usize> = serde_json::from_value(inputs["shape"].clone()).unwrap();
        let number = |field: &str| inputs[field].as_f64().unwrap() as f32;
        let data = TensorData::new(
            values(
                name,
                shape.iter().product(),
                number("scale"),
                number("offset"),
            ),
            shape,
        );
        Tensor::from_data(data, device)
    }

    /// A stored tensor.
    pub fn stored(&self, key: &str) -> TensorData {
        let found = self.expected.get(key);
        let (shape, values) = found.unwrap_or_else(|| panic!("{} has no `{key}`", self.name));
        TensorData::new(values.clone(), shape.clone())
    }

    pub fn numbers(&self, key: &str) -> Vec<f64> {
        let values: Vec<f32> = self.stored(key).try_to_vec().unwrap();
        values.into_iter().map(f64::from).collect()
    }

    pub fn has(&self, key: &str) -> bool {
        self.expected.contains_key(key)
    }

    pub fn keys(&self, prefix: &str) -> Vec<String> {
        let keys = self.expected.keys();
        keys.filter_map(|key| key.strip_prefix(prefix).map(str::to_owned))
            .collect()
    }

    /// Notes how far a result is from the expected one: largest difference over largest magnitude.
    /// Results are grouped for the report.
    pub fn compare<const D: usize>(&mut self, group: &str, key: &str, actual: &Tensor<D>) {
        self.compare_data(group, key, &actual.to_data());
    }

    /// The same for values of any rank.
    pub fn compare_data(&mut self, group: &str, key: &str, actual: &TensorData) {
        let (shape, expected) = self
            .expected
            .get(key)
            .unwrap_or_else(|| panic!("{} has no `{key}`", self.name));
        assert_eq!(actual.shape().to_vec(), *shape, "{}: `{key}`", self.name);
        let actual: Vec<f32> = actual.try_to_vec().unwrap();
        let scale = expected.iter().fold(0.0, |max: f32, e| max.max(e.abs()));
        let (index, difference) = actual
            .iter()
            .zip(expected)
            .map(|(a, e)| f64::from((a - e).abs()))
            .enumerate()
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .unwrap();
        let relative = difference / f64::from(scale.max(f32::MIN_POSITIVE));
        let place = format!(
            "`{key}`[{index}]: {} instead of {}",
            actual[index], expected[index]
        );
        let worst = self.worst.entry(group.to_owned()).or_default();
        // A NaN is the worst of all.
        if relative.is_nan() || relative >= worst.0 {
            *worst = (relative, place);
        }
    }

    /// The largest relative difference of a group must stay within its tolerance. Every comparison
    /// has to be claimed, so none is forgotten.
    pub fn expect(&mut self, group: &str, tolerance: f64) {
        let (relative, place) = self.worst.remove(group).unwrap();
        note(&format!(
            "{:24} {group:12} {relative:9.1e} (allowed {tolerance:.0e})",
            self.name
        ));
        assert!(
            relative <= tolerance,
            "{} {group}: {place}, relative to the largest value {relative:.2e} > {tolerance:.0e}",
            self.name
        );
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(self.worst.is_empty(), "unclaimed: {:?}", self.worst.keys());
        }
    }
}

/// A line for whoever runs the tests with `--nocapture`.
#[expect(clippy::print_stderr, reason = "a test's notes")]
pub fn note(line: &str) {
    eprintln!("{line}");
}

/// `offset + scale * u` with `u` uniform in [-0.5, 0.5) from a hash of name and index.
pub fn values(name: &str, count: usize, scale: f32, offset: f32) -> Vec<f32> {
    let seed = name.bytes().fold(2_166_136_261_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(16_777_619)
    });
    (0..count as u32)
        .map(|i| {
            let mut h = i
                .wrapping_mul(2_654_435_761)
                .wrapping_add(seed.wrapping_mul(40503))
                .wrapping_add(12345);
            h ^= h >> 16;
            h = h.wrapping_mul(0x85eb_ca6b);
            h ^= h >> 13;
            h = h.wrapping_mul(0xc2b2_ae35);
            h ^= h >> 16;
            offset + scale * ((h >> 8) as f32 / (1 << 24) as f32 - 0.5)
        })
        .collect()
}

/// Scale and offset of a parameter, by the last part of its key and its rank.
fn distribution(key: &str, shape: &[usize]) -> (f32, f32) {
    match (key.rsplit('.').next().unwrap(), shape) {
        ("weight", [_, channels, height, width]) => (
            (24.0 / (channels * height * width) as f64).sqrt() as f32,
            0.0,
        ),
        ("weight", [_, channels, length]) => {
            ((24.0 / (channels * length) as f64).sqrt() as f32, 0.0)
        }
        ("weight", [_, inputs]) => ((12.0 / *inputs as f64).sqrt() as f32, 0.0),
        ("weight" | "running_var", _) => (0.5, 1.0),
        ("bias" | "cls_token" | "pos_embed", _) => (0.5, 0.0),
        ("running_mean", _) => (0.2, 0.0),
        _ => panic!("no rule for `{key}`"),
    }
}

/// A module with every value by formula; `key_of` turns a path into the published key.
pub fn filled<M: Module>(module: M, key_of: impl Fn(&str) -> String) -> M {
    map_tensors(module, |path, _, shape| {
        let key = key_of(path);
        let (scale, offset) = distribution(&key, shape);
        let values = values(&key, shape.iter().product(), scale, offset);
        Some(TensorData::new(values, shape.to_vec()))
    })
}

/// Labels of the fixtures: `7 i mod classes`.
pub fn labels(count: usize, classes: usize) -> Vec<usize> {
    (0..count).map(|i| i * 7 % classes).collect()
}
