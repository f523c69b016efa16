//! The tensors of a network that is a graph.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Device, Tensor};

use super::any::Any;
use crate::backbone::Buffer;

/// A tensor of a network: a parameter of one to six axes, or a running statistic.
#[derive(Clone, Debug)]
pub(crate) enum Weight {
    R1(Param<Tensor<1>>),
    R2(Param<Tensor<2>>),
    R3(Param<Tensor<3>>),
    R4(Param<Tensor<4>>),
    R5(Param<Tensor<5>>),
    R6(Param<Tensor<6>>),
    Running(Buffer),
}

/// Does the same with a tensor of any kind.
macro_rules! each_weight {
    ($weight:expr, $x:ident => $body:expr) => {
        match $weight {
            Weight::R1($x) => $body,
            Weight::R2($x) => $body,
            Weight::R3($x) => $body,
            Weight::R4($x) => $body,
            Weight::R5($x) => $body,
            Weight::R6($x) => $body,
            Weight::Running($x) => $body,
        }
    };
}

/// Makes a tensor of the same kind from one of any kind.
macro_rules! map_weight {
    ($weight:expr, $x:ident => $body:expr) => {
        match $weight {
            Weight::R1($x) => Weight::R1($body),
            Weight::R2($x) => Weight::R2($body),
            Weight::R3($x) => Weight::R3($body),
            Weight::R4($x) => Weight::R4($body),
            Weight::R5($x) => Weight::R5($body),
            Weight::R6($x) => Weight::R6($body),
            Weight::Running($x) => Weight::Running($body),
        }
    };
}

impl Weight {
    /// Makes a parameter of zeros. A number has the shape `[1]`.
    pub(crate) fn zeros(shape: &[usize], device: &Device) -> Self {
        fn param<const D: usize>(shape: &[usize], device: &Device) -> Param<Tensor<D>> {
            let shape: [usize; D] = std::array::from_fn(|axis| shape[axis]);
            Param::from_tensor(Tensor::zeros(shape, device))
        }
        match shape.len() {
            0 => Self::R1(param(&[1], device)),
            1 => Self::R1(param(shape, device)),
            2 => Self::R2(param(shape, device)),
            3 => Self::R3(param(shape, device)),
            4 => Self::R4(param(shape, device)),
            5 => Self::R5(param(shape, device)),
            6 => Self::R6(param(shape, device)),
            axes => unreachable!("a tensor of {axes} axes passed the checks of its graph"),
        }
    }

    /// Makes a running statistic of zeros.
    pub(crate) fn running(channels: usize, device: &Device) -> Self {
        Self::Running(Buffer::new(Tensor::zeros([channels], device)))
    }

    /// Returns the value.
    pub(crate) fn value(&self) -> Any {
        match self {
            Self::R1(param) => param.val().into(),
            Self::R2(param) => param.val().into(),
            Self::R3(param) => param.val().into(),
            Self::R4(param) => param.val().into(),
            Self::R5(param) => param.val().into(),
            Self::R6(param) => param.val().into(),
            Self::Running(buffer) => buffer.value().into(),
        }
    }

    /// Returns the identity of the tensor, as visitors meet it.
    pub(crate) fn id(&self) -> ParamId {
        each_weight!(self, x => x.id)
    }

    /// Returns the running statistic.
    ///
    /// # Panics
    /// If it is a parameter; a checked graph names running tensors where a norm reads them.
    pub(crate) fn buffer(&self) -> &Buffer {
        match self {
            Self::Running(buffer) => buffer,
            _ => unreachable!("a checked graph has running tensors here"),
        }
    }

    pub(crate) fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        each_weight!(self, x => x.visit(visitor));
    }

    pub(crate) fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        map_weight!(self, x => Module::map(x, mapper))
    }

    pub(crate) fn collect_devices(&self, devices: Vec<Device>) -> Vec<Device> {
        each_weight!(self, x => x.collect_devices(devices))
    }

    pub(crate) fn fork(self, device: &Device) -> Self {
        map_weight!(self, x => x.fork(device))
    }

    pub(crate) fn moved(self, device: &Device) -> Self {
        map_weight!(self, x => x.to_device(device))
    }

    pub(crate) fn valid(&self) -> Self {
        map_weight!(self, x => x.valid())
    }

    pub(crate) fn train(self) -> Self {
        map_weight!(self, x => x.train())
    }

    pub(crate) fn materialize(self) -> Self {
        map_weight!(self, x => x.materialize())
    }
}
