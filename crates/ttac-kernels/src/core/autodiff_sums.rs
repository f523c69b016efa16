//! Gradients that meet at a tensor, added inside the kernels.
//!
//! A tensor that two ops read gets two gradients. Burn would add them afterwards, on one thread. Instead the step that runs second takes the first gradient
//! away and hands it to its kernel, which adds it on the way: the same sum, to the bit, without another pass over memory.

use std::collections::HashSet;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::backend::Flex;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::backend::flex::FlexTensor;

use super::buffer::dense;
use crate::Context;

/// More entries than a pass over any network has.
const MOST_ENTRIES: usize = 1 << 16;

/// The nodes that have a gradient by one of our steps.
///
/// A node is here at most until its own step has run. Its number is never given to another node, so an entry that stays (because the node's step was not
/// ours) is never asked for again.
#[derive(Debug, Default)]
pub(crate) struct Registered(Mutex<HashSet<u64>>);

impl Registered {
    fn lock(&self) -> MutexGuard<'_, HashSet<u64>> {
        // A set is whole after any panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What an op of ours keeps of its forward pass, and what it does in the backward pass.
pub(crate) trait Step: Clone + Debug + Send + 'static {
    /// Whether [`backward`](Self::backward) adds the gradient that its first parent already has to its own.
    const ADDS: bool = true;

    /// The context of the forward pass.
    fn context(&self) -> &Context;

    /// Goes from the gradient of the op's result to those of its parents.
    fn backward(self, dy: FlexTensor, parents: Parents<'_>);
}

/// The parents of an op in its backward step, by their number.
pub(crate) struct Parents<'a> {
    context: Context,
    grads: &'a mut Gradients,
    nodes: [Option<NodeId>; MOST_PARENTS],
    /// The gradient that the first parent already had; whoever gives it another one adds this.
    pub(crate) other: Option<FlexTensor>,
}

/// The most parents of an op.
const MOST_PARENTS: usize = 5;

impl Parents<'_> {
    /// Whether a parent wants a gradient.
    pub(crate) fn wants(&self, parent: usize) -> bool {
        self.nodes[parent].is_some()
    }

    /// Gives a parent its gradient, if it wants one. A later step may take it away to add its own.
    pub(crate) fn give(&mut self, parent: usize, gradient: FlexTensor) {
        let Some(node) = self.nodes[parent] else {
            return;
        };
        let mut registered = self.context.registered().lock();
        if registered.len() >= MOST_ENTRIES {
            // Burn adds the gradients of nodes that are not in the set.
            registered.clear();
        }
        registered.insert(node.value);
        drop(registered);
        self.grads.register::<Flex>(node, gradient);
    }

    /// Gives the first parents their gradients.
    pub(crate) fn give_all<const N: usize>(&mut self, gradients: [FlexTensor; N]) {
        for (parent, gradient) in gradients.into_iter().enumerate() {
            self.give(parent, gradient);
        }
    }
}

/// The backward step of an op, as Burn wants it.
#[derive(Debug)]
pub(crate) struct Recorded<S>(PhantomData<S>);

impl<S> Recorded<S> {
    pub(crate) const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<S: Step, const N: usize> Backward<Flex, N> for Recorded<S> {
    type State = S;

    fn backward(self, ops: Ops<S, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let context = ops.state.context().clone();
        context.registered().lock().remove(&ops.node.id.value);
        let dy = dense(grads.consume::<Flex>(&ops.node));
        let first = ops.parents[0].as_ref().filter(|_| S::ADDS);
        let other = first.and_then(|node| {
            // A leaf's gradient cannot be taken away. The step's own result is no leaf.
            let taken = node.requirement == ops.node.requirement
                && context.registered().lock().remove(&node.id.value);
            taken.then(|| dense(grads.consume::<Flex>(node)))
        });
        let mut parents = ops.parents.into_iter();
        let nodes = std::array::from_fn(|_| parents.next().flatten().map(|node| node.id));
        let parents = Parents {
            context,
            grads,
            nodes,
            other,
        };
        ops.state.backward(dy, parents);
    }
}
