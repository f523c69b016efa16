//! Running a graph.
//!
//! | file | what |
//! |---|---|
//! | `fuse` | which nodes run as one step |
//! | `layout` | where the axes of a value lie in memory |
//! | `plan` | from nodes to steps |
//! | `work` | the steps |
//! | `execute` | computing them |
//! | `any` | tensors whose number of axes is known only when the program runs |
//! | `weight` | the tensors of the network |

pub(crate) mod any;
mod arithmetic;
mod execute;
mod fuse;
mod layout;
mod plan;
mod weight;
mod work;

pub(crate) use execute::Pass;
pub(crate) use weight::Weight;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use ttac_kernels::{Context, Implementation};

use super::ir::{Graph, Operand, ValueId};
use super::op::Op;
use any::{Any, each};
use fuse::Purpose;
use plan::{Plan, Start, plan};

/// The plans of a network: how to get from images to features, and from features to scores.
#[derive(Debug)]
pub(crate) struct Plans {
    training: [Plan; 2],
    inference: [Plan; 2],
    /// The plans without any joined steps, and the plans that drop elements: made when they are first used.
    plain: OnceLock<[Plan; 2]>,
    dropping: OnceLock<[Plan; 2]>,
    graph: Graph,
}

impl Plans {
    /// Plans a graph that has no [problems](Graph::problems).
    pub(crate) fn new(graph: &Graph) -> Self {
        let still = without_dropout(graph);
        Self {
            training: both(&still, Purpose::Training),
            inference: both(&still, Purpose::Inference),
            plain: OnceLock::new(),
            dropping: OnceLock::new(),
            graph: graph.clone(),
        }
    }

    /// Computes the features of images whose channels come last.
    pub(crate) fn features(&self, images: Any, pass: &Pass<'_>) -> Any {
        self.choose(&images, pass)[0].run(images, pass)
    }

    /// Computes the scores of features.
    pub(crate) fn scores(&self, features: Any, pass: &Pass<'_>) -> Any {
        self.choose(&features, pass)[1].run(features, pass)
    }

    fn choose(&self, start: &Any, pass: &Pass<'_>) -> &[Plan; 2] {
        let tracked = each!(start, x => x.is_autodiff());
        if pass.draw.is_some() {
            let make = || both(&self.graph, Purpose::Training);
            self.dropping.get_or_init(make)
        } else if Context::current().implementation() == Implementation::Composed {
            let make = || both(&without_dropout(&self.graph), Purpose::Plain);
            self.plain.get_or_init(make)
        } else if pass.norm.is_running() && !tracked {
            &self.inference
        } else {
            &self.training
        }
    }
}

fn both(graph: &Graph, purpose: Purpose) -> [Plan; 2] {
    [Start::Images, Start::Features].map(|start| plan(graph, start, purpose))
}

/// Returns the graph without the nodes that only do something in source training.
fn without_dropout(graph: &Graph) -> Graph {
    let mut graph = graph.clone();
    let mut renamed: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    let nodes = std::mem::take(&mut graph.nodes);
    for mut node in nodes {
        for operand in &mut node.inputs {
            if let Operand::Value(value) = operand {
                *value = renamed.get(value).copied().unwrap_or(*value);
            }
        }
        match (&node.op, node.inputs.first()) {
            (Op::Dropout { .. }, Some(Operand::Value(value))) => {
                renamed.insert(node.output, *value);
            }
            _ => graph.nodes.push(node),
        }
    }
    for end in [&mut graph.features, &mut graph.output] {
        *end = renamed.get(end).copied().unwrap_or(*end);
    }
    graph
}
