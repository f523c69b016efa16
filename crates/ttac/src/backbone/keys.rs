//! Parameters and buffers of a network by their published key.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Tensor, TensorData};

use super::Backbone;

/// What a parameter is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterKind {
    /// Weights and biases of convolutions and linear layers.
    Weight,
    /// Scale and shift of a normalisation layer.
    Affine,
    /// Running statistics: kept with the weights, never learned by gradients.
    Buffer,
}

/// One tensor of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its key in the published checkpoint.
    pub key: String,
    /// Its identity in Burn's optimisers and gradients.
    pub id: ParamId,
    /// Its shape, as in PyTorch.
    pub shape: Vec<usize>,
    /// What it is for.
    pub kind: ParameterKind,
}

/// All parameters and buffers, in the order of the module tree.
pub fn parameters<B: Backbone>(backbone: &B) -> Vec<Parameter> {
    let mut list = List {
        path: Path::default(),
        found: Vec::new(),
    };
    backbone.visit(&mut list);
    for parameter in &mut list.found {
        parameter.key = backbone.published_key(&parameter.key);
    }
    list.found
}

/// The values of all parameters and buffers by key.
pub fn tensors<B: Backbone>(backbone: &B) -> BTreeMap<String, TensorData> {
    let mut read = Read {
        path: Path::default(),
        found: Vec::new(),
    };
    backbone.visit(&mut read);
    let named = read.found.into_iter();
    named
        .map(|(path, data)| (backbone.published_key(&path), data))
        .collect()
}

/// The network with the given values in place of its own; keys that are absent keep theirs.
///
/// # Panics
/// If a value has another shape than the parameter it replaces: check before.
pub fn load_tensors<B: Backbone>(backbone: B, values: &BTreeMap<String, TensorData>) -> B {
    // The mapper consumes the network, so the renaming is taken from a handle beside it.
    let names = backbone.clone();
    map_tensors(backbone, |path, _, shape| {
        let value = values.get(&names.published_key(path))?;
        assert_eq!(value.shape().as_slice(), shape, "value for `{path}`");
        Some(value.clone())
    })
}

/// Any module with its values replaced by `value_of(path, kind, shape)`, where that gives one.
pub fn map_tensors<M: Module>(
    module: M,
    value_of: impl FnMut(&str, ParameterKind, &[usize]) -> Option<TensorData>,
) -> M {
    module.map(&mut Write {
        path: Path::default(),
        value_of,
    })
}

/// The path to the tensor under the visitor. Variants of an enum are choices, not parts, and have
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
            Some((name, _)) if name.starts_with("running_") => ParameterKind::Buffer,
            Some((_, container)) if container.ends_with("Norm") => ParameterKind::Affine,
            _ => ParameterKind::Weight,
        }
    }
}

struct List {
    path: Path,
    found: Vec<Parameter>,
}

impl ModuleVisitor for List {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.found.push(Parameter {
            key: self.path.key(),
            id: param.id,
            shape: param.lazy_shape().to_vec(),
            kind: self.path.kind(),
        });
    }
}

struct Read {
    path: Path,
    found: Vec<(String, TensorData)>,
}

impl ModuleVisitor for Read {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.found.push((self.path.key(), param.val().to_data()));
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
