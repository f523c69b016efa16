//! The trained parameters of a network as one list of numbers, for methods that move them otherwise than by steps of the
//! optimiser: towards the source, towards an average, up a gradient and back.

use burn::module::{ModuleMapper, ModuleVisitor, Param, ParamGroup};
use burn::optim::GradientsParams;
use burn::tensor::{Tensor, TensorData};

use crate::backbone::Backbone;

/// Reads the values of the parameters in a group, in the order of the network's modules.
pub(crate) fn values<B: Backbone>(network: &B, group: &ParamGroup) -> Vec<f32> {
    let mut read = Read {
        group,
        values: Vec::new(),
    };
    network.visit(&mut read);
    read.values
}

/// Returns how many values each parameter in a group has, in the order of the network's modules.
pub(super) fn lengths<B: Backbone>(network: &B, group: &ParamGroup) -> Vec<usize> {
    let mut measure = Measure {
        group,
        lengths: Vec::new(),
    };
    network.visit(&mut measure);
    measure.lengths
}

/// Returns the network with other values of the parameters in a group.
///
/// # Panics
/// If there are not as many values.
pub(super) fn with_values<B: Backbone>(network: B, group: &ParamGroup, values: &[f32]) -> B {
    let mut write = Write {
        group,
        rest: values,
    };
    let network = network.map(&mut write);
    assert!(write.rest.is_empty(), "more values than parameters");
    network
}

/// Computes the gradient of a loss over the parameters in a group. A parameter that the loss does not depend on has zeros.
pub(crate) fn gradient<B: Backbone>(network: &B, group: &ParamGroup, loss: &Tensor<1>) -> Vec<f32> {
    let gradients = GradientsParams::from_grads(loss.backward(), network);
    let mut slope = Slope {
        group,
        gradients: &gradients,
        values: Vec::new(),
    };
    network.visit(&mut slope);
    slope.values
}

/// Makes a gradient of the parameters in a group what an optimiser takes.
///
/// # Panics
/// If it is not as long as the parameters.
pub(super) fn gradients<B: Backbone>(
    network: &B,
    group: &ParamGroup,
    gradient: &[f32],
) -> GradientsParams {
    let mut give = Give {
        group,
        rest: gradient,
        gradients: GradientsParams::new(),
    };
    network.visit(&mut give);
    assert!(give.rest.is_empty(), "more slopes than parameters");
    give.gradients
}

struct Read<'a> {
    group: &'a ParamGroup,
    values: Vec<f32>,
}

impl ModuleVisitor for Read<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.group.matches(&param.id, None) {
            self.values.extend(numbers(param.val()));
        }
    }
}

struct Measure<'a> {
    group: &'a ParamGroup,
    lengths: Vec<usize>,
}

impl ModuleVisitor for Measure<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.group.matches(&param.id, None) {
            self.lengths.push(param.lazy_shape().iter().product());
        }
    }
}

struct Write<'a> {
    group: &'a ParamGroup,
    rest: &'a [f32],
}

impl ModuleMapper for Write<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !self.group.matches(&param.id, None) {
            return param;
        }
        let data = take(&mut self.rest, param.lazy_shape().to_vec());
        param.map(|old| Tensor::from_data(data, &old.device()))
    }
}

struct Slope<'a> {
    group: &'a ParamGroup,
    gradients: &'a GradientsParams,
    values: Vec<f32>,
}

impl ModuleVisitor for Slope<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !self.group.matches(&param.id, None) {
            return;
        }
        if let Some(gradient) = self.gradients.get::<D>(param.id) {
            self.values.extend(numbers(gradient));
        } else {
            let count: usize = param.lazy_shape().iter().product();
            self.values.extend(std::iter::repeat_n(0.0, count));
        }
    }
}

struct Give<'a> {
    group: &'a ParamGroup,
    rest: &'a [f32],
    gradients: GradientsParams,
}

impl ModuleVisitor for Give<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.group.matches(&param.id, None) {
            let data = take(&mut self.rest, param.lazy_shape().to_vec());
            let device = param.val().device().without_autodiff();
            let gradient = Tensor::<D>::from_data(data, &device);
            self.gradients.register::<D>(param.id, gradient);
        }
    }
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().expect("parameters are f32")
}

/// Takes the values of the next parameter.
fn take(rest: &mut &[f32], shape: Vec<usize>) -> TensorData {
    let count = shape.iter().product();
    assert!(rest.len() >= count, "fewer values than parameters");
    let (own, later) = rest.split_at(count);
    *rest = later;
    TensorData::new(own.to_vec(), shape)
}
