//! Networks of any architecture, as graphs that another framework exported.
//!
//! The configuration is the [`Graph`] itself. Keys are those of the network's `state_dict`, whatever they are.

use std::sync::Arc;

use burn::module::{
    Content, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor,
};
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::family::{Entry, Family, InputForm};
use super::keys::{AFFINE, CONSTANT, RUNNING};
use super::layers::Linear;
use super::{Backbone, NormMode};
use crate::graph::run::any::Any;
use crate::graph::run::{Pass, Plans, Weight};
use crate::graph::{Graph, HeadLayer, TensorId, TensorInfo, TensorKind};

pub(super) const ENTRY: Entry<GraphConfig> = Entry {
    family: "graph",
    about: "network of any architecture, imported as a graph",
    weights: "the network it was exported from",
    published: &[],
};

/// Configures a [`GraphNetwork`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphConfig {
    /// The operations and the tensors they read.
    pub graph: Graph,
    /// Number of classes the network tells apart.
    pub num_classes: usize,
}

impl GraphConfig {
    /// Describes the network of a graph.
    pub fn new(graph: Graph) -> Self {
        Self {
            num_classes: graph.num_classes(),
            graph,
        }
    }

    /// Builds the network with all tensors zero.
    pub(super) fn init(&self, device: &Device) -> GraphNetwork {
        let tensors = self.graph.tensors.iter().map(|info| match info.kind {
            TensorKind::Running => Weight::running(info.shape.iter().product(), device),
            // A counter has no tensor; this one is never visited.
            TensorKind::Counter(_) => Weight::zeros(&[], device),
            _ => Weight::zeros(&info.shape, device),
        });
        GraphNetwork {
            tensors: tensors.collect(),
            plans: Arc::new(Plans::new(&self.graph)),
            graph: Arc::new(self.graph.clone()),
        }
    }
}

impl Family for GraphConfig {
    fn input(&self) -> InputForm {
        InputForm::Images {
            size: self.graph.image_size(),
            fixed: true,
        }
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = self.graph.problems();
        if problems.is_empty() && self.graph.num_classes() != self.num_classes {
            problems.push(format!(
                "the graph has {} classes, and the header says {}",
                self.graph.num_classes(),
                self.num_classes
            ));
        }
        problems
    }
}

/// A network that is a graph.
#[derive(Clone, Debug)]
pub struct GraphNetwork {
    graph: Arc<Graph>,
    plans: Arc<Plans>,
    /// The tensors, in the order of the graph.
    tensors: Vec<Weight>,
}

impl GraphNetwork {
    /// Returns the graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    fn pass<'a>(&'a self, norm: NormMode<'a>, draw: Option<u64>) -> Pass<'a> {
        Pass {
            graph: &self.graph,
            tensors: &self.tensors,
            norm,
            draw,
        }
    }

    /// Returns a weight of the head, `[num_classes, inputs]`.
    fn head_weight(&self, layer: &HeadLayer) -> Tensor<2> {
        let TensorId(number) = layer.weight;
        let weight = self.tensors[number as usize].value();
        let dims = weight.dims();
        weight.view([dims[0], dims[1]])
    }

    /// Iterates over the tensors that files hold, with what the graph says of them.
    fn stored(&self) -> impl Iterator<Item = (&TensorInfo, &Weight)> {
        let all = self.graph.tensors.iter().zip(&self.tensors);
        all.filter(|(info, _)| !matches!(info.kind, TensorKind::Counter(_)))
    }

    /// Returns the same network with each tensor replaced.
    fn with_tensors(self, replace: impl FnMut(Weight) -> Weight) -> Self {
        Self {
            tensors: self.tensors.into_iter().map(replace).collect(),
            ..self
        }
    }
}

impl Backbone for GraphNetwork {
    fn features(&self, inputs: Tensor<4>, norm: NormMode) -> Tensor<2> {
        let pass = self.pass(norm, None);
        let features = self.plans.features(Any::from(inputs), &pass);
        rows(features, self.graph.num_features())
    }

    fn classifier(&self) -> Option<&Linear> {
        None
    }

    fn logits(&self, features: Tensor<2>) -> Tensor<2> {
        let pass = self.pass(NormMode::Running, None);
        let scores = self.plans.scores(Any::from(features), &pass);
        rows(scores, self.graph.num_classes())
    }

    fn training_logits(&self, inputs: Tensor<4>, draw: u64) -> Tensor<2> {
        let pass = self.pass(NormMode::BatchUpdating, Some(draw));
        let features = self.plans.features(Any::from(inputs), &pass);
        rows(self.plans.scores(features, &pass), self.graph.num_classes())
    }

    fn num_features(&self) -> usize {
        self.graph.num_features()
    }

    fn num_classes(&self) -> usize {
        self.graph.num_classes()
    }

    fn head_weights(&self) -> Option<Tensor<2>> {
        let head = self.graph.head.iter();
        let parts: Vec<Tensor<2>> = head.map(|layer| self.head_weight(layer)).collect();
        match parts.len() {
            0 => None,
            1 => parts.into_iter().next(),
            // The scores are the mean of what the layers give.
            count => Some(Tensor::cat(parts, 1) / count as f64),
        }
    }

    fn classifier_keys(&self) -> Vec<String> {
        let head = self.graph.head.iter();
        let tensors = head.flat_map(|layer| std::iter::once(layer.weight).chain(layer.bias));
        tensors
            .map(|tensor| self.graph.tensor(tensor).name.clone())
            .collect()
    }
}

fn rows(value: Any, width: usize) -> Tensor<2> {
    let count = value.dims().iter().product::<usize>() / width;
    value.view([count, width])
}

/// The containers under which a visitor meets a tensor tell its kind.
fn container(kind: TensorKind) -> &'static str {
    match kind {
        TensorKind::Weight => "Weight",
        TensorKind::Affine => AFFINE,
        TensorKind::Running => RUNNING,
        TensorKind::Constant | TensorKind::Unused | TensorKind::Counter(_) => CONSTANT,
    }
}

impl Module for GraphNetwork {
    fn collect_devices(&self, devices: Vec<Device>) -> Vec<Device> {
        let tensors = self.tensors.iter();
        tensors.fold(devices, |devices, tensor| tensor.collect_devices(devices))
    }

    fn fork(self, device: &Device) -> Self {
        self.with_tensors(|tensor| tensor.fork(device))
    }

    fn to_device(self, device: &Device) -> Self {
        self.with_tensors(|tensor| tensor.moved(device))
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        for (info, tensor) in self.stored() {
            let (path, container) = (info.name.split('.'), container(info.kind));
            for part in path.clone() {
                visitor.enter_module(part, container);
            }
            tensor.visit(visitor);
            for part in path.rev() {
                visitor.exit_module(part, container);
            }
        }
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        let graph = self.graph.clone();
        let mut infos = graph.tensors.iter();
        self.with_tensors(|tensor| {
            let info = infos.next().expect("every tensor is described");
            if matches!(info.kind, TensorKind::Counter(_)) {
                return tensor;
            }
            let (path, container) = (info.name.split('.'), container(info.kind));
            for part in path.clone() {
                mapper.enter_module(part, container);
            }
            let mapped = tensor.map(mapper);
            for part in path.rev() {
                mapper.exit_module(part, container);
            }
            mapped
        })
    }

    fn valid(&self) -> Self {
        self.clone().with_tensors(|tensor| tensor.valid())
    }

    fn train(self) -> Self {
        self.with_tensors(Weight::train)
    }

    fn materialize(self) -> Self {
        self.with_tensors(Weight::materialize)
    }
}

impl ModuleDisplayDefault for GraphNetwork {
    fn content(&self, content: Content) -> Option<Content> {
        let nodes = self.graph.nodes.len();
        content
            .add_formatted(&format!("graph of {nodes} operations"))
            .optional()
    }
}

impl ModuleDisplay for GraphNetwork {}
