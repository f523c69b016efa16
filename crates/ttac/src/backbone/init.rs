//! Random initial weights, and identities of parameters that survive a restart.

use burn::module::{ModuleMapper, Param, ParamId};
use burn::tensor::{Tensor, TensorData};
use rand::RngExt;
use rand_distr::{Distribution, StandardNormal};

use super::Backbone;
use super::keys::{ParameterKind, Path, map_tensors};
use crate::rng::seeded;

/// Returns the identity of the parameter at a module path. It is a hash of the path, so that the state of an optimiser
/// finds its parameter again in another process.
pub fn parameter_id(path: &str) -> ParamId {
    ParamId::from(path_hash(path))
}

fn path_hash(path: &str) -> u64 {
    let digest = blake3::hash(path.as_bytes());
    let head: [u8; 8] = std::array::from_fn(|i| digest.as_bytes()[i]);
    u64::from_le_bytes(head)
}

/// Gives every parameter its lasting identity, [`parameter_id`].
pub(super) fn identify<B: Backbone>(backbone: B) -> B {
    backbone.map(&mut Identify(Path::default()))
}

/// Draws fresh weights. Those of convolutions are normal with variance `2 / (k * k * out_channels)` (Kaiming, fan-out), those of
/// linear layers uniform within `1 / sqrt(inputs)`, and tokens and positions of transformers, `[1, _, _]`, normal with deviation
/// 0.02. Biases stay zero, and norms as they are. Each tensor has its own random stream, keyed by seed and path, so that a change of
/// one layer does not move the others.
pub(super) fn randomise<B: Backbone>(backbone: B, seed: u64) -> B {
    map_tensors(backbone, |path, kind, shape| {
        if kind != ParameterKind::Weight {
            return None;
        }
        let mut rng = seeded(seed, path_hash(path));
        let count = shape.iter().product();
        let values: Vec<f32> = match *shape {
            [out_channels, _, kernel, _] => {
                let deviation = (2.0 / (kernel * kernel * out_channels) as f32).sqrt();
                let normal = StandardNormal.sample_iter(&mut rng);
                normal.take(count).map(|z: f32| z * deviation).collect()
            }
            [1, _, _] => {
                let normal = StandardNormal.sample_iter(&mut rng);
                normal.take(count).map(|z: f32| z * 0.02).collect()
            }
            // One-dimensional convolutions have a kernel of one: they are linear layers, too.
            [_, inputs] | [_, inputs, 1] => {
                let bound = 1.0 / (inputs as f32).sqrt();
                (0..count)
                    .map(|_| rng.random_range(-bound..bound))
                    .collect()
            }
            _ => return None,
        };
        Some(TensorData::new(values, shape.to_vec()))
    })
}

struct Identify(Path);

impl ModuleMapper for Identify {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.0.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.0.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (_, tensor, mapper) = param.consume();
        Param::from_mapped_value(parameter_id(&self.0.key()), tensor, mapper)
    }
}
