//! Listing, reading and replacing the parameters and buffers of a network by their published key.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Tensor, TensorData};

use super::Backbone;

/// The part a parameter plays in its layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterKind {
    /// It is a weight or a bias of a convolution or a linear layer, or a learned token.
    Weight,
    /// It is the scale or the shift of a normalisation layer.
    Affine,
    /// It is a running statistic, which is kept with the weights and never learned by gradients.
    Buffer,
    /// It is written into the network and never changes.
    Constant,
}

impl ParameterKind {
    /// Tells whether gradients may change it.
    pub fn is_learned(self) -> bool {
        match self {
            Self::Weight | Self::Affine => true,
            Self::Buffer | Self::Constant => false,
        }
    }
}

/// Describes one tensor of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// The key of the tensor in the published checkpoint.
    pub key: String,
    /// The identity of the tensor in Burn's optimisers and gradients.
    pub id: ParamId,
    /// The shape of the tensor, as in PyTorch.
    pub shape: Vec<usize>,
    /// The part the tensor plays in its layer.
    pub kind: ParameterKind,
}

/// Lists all parameters and buffers of a network, in the order of its modules.
pub fn parameters<B: Backbone>(backbone: &B) -> Vec<Parameter> {
    let mut found = Vec::new();
    each(backbone, false, |parameter, _| found.push(parameter));
    found
}

/// Reads the values of all parameters and buffers of a network, by key.
pub fn tensors<B: Backbone>(backbone: &B) -> BTreeMap<String, TensorData> {
    let mut found = BTreeMap::new();
    each(backbone, true, |parameter, value| {
        found.extend(value.map(|value| (parameter.key, value)));
    });
    found
}

/// Calls `take` with each parameter and buffer, and with its value if values are asked for.
fn each<B: Backbone>(
    backbone: &B,
    values: bool,
    mut take: impl FnMut(Parameter, Option<TensorData>),
) {
    backbone.visit(&mut Read {
        path: Path::default(),
        values,
        take: |mut parameter: Parameter, value| {
            parameter.key = backbone.published_key(&parameter.key);
            take(parameter, value);
        },
    });
}

/// Returns the network with the given values in place of its own. Parameters whose key is absent keep theirs.
///
/// # Panics
/// If a value has another shape than the parameter it replaces. Compare with [`parameters`] before.
pub fn load_tensors<B: Backbone>(backbone: B, values: &BTreeMap<String, TensorData>) -> B {
    // The mapper consumes the network, so the renaming is taken from a handle beside it.
    let names = backbone.clone();
    map_tensors(backbone, |path, _, shape| {
        let value = values.get(&names.published_key(path))?;
        assert_eq!(value.shape().as_slice(), shape, "value for `{path}`");
        Some(value.clone())
    })
}

/// Returns any module with each value replaced by `value_of(path, kind, shape)`, where that gives one.
pub fn map_tensors<M: Module>(
    module: M,
    value_of: impl FnMut(&str, ParameterKind, &[usize]) -> Option<TensorData>,
) -> M {
    module.map(&mut Write {
        path: Path::default(),
        value_of,
    })
}

/// Containers by which a network that is a graph tells the kinds of its tensors, whatever their names are.
pub(super) const CONSTANT: &str = "Constant";
pub(super) const RUNNING: &str = "Running";
pub(super) const AFFINE: &str = "Norm";

/// Keeps track of the path to the tensor a visitor is at. Variants of an enum are choices, not parts, and have
/// no name in a checkpoint.
#[derive(Default)]
pub(super) struct Path(Vec<(String, String)>);

impl Path {
    pub(super) fn enter(&mut self, name: &str, container: &str) {
        self.0.push((name.to_owned(), container.to_owned()));
    }

    pub(super) fn exit(&mut self) {
        self.0.pop();
    }

    pub(super) fn key(&self) -> String {
        let parts = self.0.iter();
        let names = parts.filter(|(_, container)| !container.starts_with("Enum:"));
        names
            .map(|(name, _)| name.as_str())
            .collect::<Vec<_>>()
            .join(".")
    }

    fn kind(&self) -> ParameterKind {
        match self.0.last() {
            Some((_, container)) if container == CONSTANT => ParameterKind::Constant,
            Some((_, container)) if container == RUNNING => ParameterKind::Buffer,
            Some((name, _)) if name.starts_with("running_") => ParameterKind::Buffer,
            Some((_, container)) if container.ends_with("Norm") => ParameterKind::Affine,
            _ => ParameterKind::Weight,
        }
    }
}

struct Read<F> {
    path: Path,
    values: bool,
    take: F,
}

impl<F: FnMut(Parameter, Option<TensorData>)> ModuleVisitor for Read<F> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let parameter = Parameter {
            key: self.path.key(),
            id: param.id,
            shape: param.lazy_shape().to_vec(),
            kind: self.path.kind(),
        };
        let value = self.values.then(|| param.val().to_data());
        (self.take)(parameter, value);
    }
}

struct Write<F> {
    path: Path,
    value_of: F,
}

impl<F: FnMut(&str, ParameterKind, &[usize]) -> Option<TensorData>> ModuleMapper for Write<F> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let shape = param.lazy_shape().to_vec();
        match (self.value_of)(&self.path.key(), self.path.kind(), &shape) {
            Some(data) => param.map(|old| {
                let tensor = Tensor::from_data(data, &old.device());
                tensor.set_require_grad(old.is_require_grad())
            }),
            None => param,
        }
    }
}
