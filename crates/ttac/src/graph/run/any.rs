//! Tensors whose number of axes is known only when the program runs.

use burn::tensor::{Device, Tensor};

/// A tensor of one to six axes.
#[derive(Clone, Debug)]
pub(crate) enum Any {
    R1(Tensor<1>),
    R2(Tensor<2>),
    R3(Tensor<3>),
    R4(Tensor<4>),
    R5(Tensor<5>),
    R6(Tensor<6>),
}

/// Does the same with a tensor of any number of axes: `each!(any, x => x.dims().to_vec())`.
macro_rules! each {
    ($any:expr, $x:ident => $body:expr) => {
        match $any {
            $crate::graph::run::any::Any::R1($x) => $body,
            $crate::graph::run::any::Any::R2($x) => $body,
            $crate::graph::run::any::Any::R3($x) => $body,
            $crate::graph::run::any::Any::R4($x) => $body,
            $crate::graph::run::any::Any::R5($x) => $body,
            $crate::graph::run::any::Any::R6($x) => $body,
        }
    };
}
pub(crate) use each;

/// A tensor with a known number of axes, taken out of an [`Any`] without touching it.
pub(crate) trait FromAny: Sized {
    /// Returns the tensor if it has as many axes, and the other one as it was.
    #[expect(
        clippy::result_large_err,
        reason = "the error is the tensor itself, handed back"
    )]
    fn from_any(any: Any) -> Result<Self, Any>;
}

macro_rules! ranks {
    ($($variant:ident $rank:literal)+) => {$(
        impl From<Tensor<$rank>> for Any {
            fn from(tensor: Tensor<$rank>) -> Self {
                Self::$variant(tensor)
            }
        }

        impl FromAny for Tensor<$rank> {
            fn from_any(any: Any) -> Result<Self, Any> {
                match any {
                    Any::$variant(tensor) => Ok(tensor),
                    other => Err(other),
                }
            }
        }
    )+};
}
ranks! { R1 1 R2 2 R3 3 R4 4 R5 5 R6 6 }

impl Any {
    /// Returns the size of each axis.
    pub(crate) fn dims(&self) -> Vec<usize> {
        each!(self, x => x.dims().to_vec())
    }

    /// Returns the device the tensor is on.
    pub(crate) fn device(&self) -> Device {
        each!(self, x => x.device())
    }

    /// Returns the tensor with these sizes. Nothing is recorded for gradients where it has them already.
    pub(crate) fn view<const D: usize>(self, shape: [usize; D]) -> Tensor<D>
    where
        Tensor<D>: FromAny,
    {
        match Tensor::<D>::from_any(self) {
            Ok(tensor) if tensor.dims() == shape => tensor,
            Ok(tensor) => tensor.reshape(shape),
            Err(other) => each!(other, x => x.reshape(shape)),
        }
    }

    /// Returns the tensor with these sizes.
    ///
    /// # Panics
    /// If there are more than six; a graph is checked for that.
    pub(crate) fn reshape(self, shape: &[usize]) -> Self {
        fn sizes<const D: usize>(shape: &[usize]) -> [usize; D] {
            std::array::from_fn(|axis| shape[axis])
        }
        match shape.len() {
            // A number is a vector of one.
            0 => self.view::<1>([1]).into(),
            1 => self.view::<1>(sizes(shape)).into(),
            2 => self.view::<2>(sizes(shape)).into(),
            3 => self.view::<3>(sizes(shape)).into(),
            4 => self.view::<4>(sizes(shape)).into(),
            5 => self.view::<5>(sizes(shape)).into(),
            6 => self.view::<6>(sizes(shape)).into(),
            axes => unreachable!("a value of {axes} axes passed the checks of its graph"),
        }
    }

    /// Returns the tensor with its axes in another order: axis `i` of the result is axis `axes[i]`.
    pub(crate) fn permute(self, axes: &[usize]) -> Self {
        fn order<const D: usize>(axes: &[usize]) -> [isize; D] {
            std::array::from_fn(|axis| axes[axis] as isize)
        }
        if axes.is_sorted() {
            return self;
        }
        each!(self, x => x.permute(order(axes)).into())
    }

    /// Returns the tensor as `[before, size of the axis, after]`, with the sizes as they were.
    pub(crate) fn around(self, axis: usize) -> (Tensor<3>, Vec<usize>) {
        let dims = self.dims();
        let before = dims[..axis].iter().product();
        let after = dims[axis + 1..].iter().product();
        let size = dims[axis];
        (self.view([before, size, after]), dims)
    }

    /// Returns the tensor as rows of its last axis, with the sizes as they were.
    pub(crate) fn rows(self) -> (Tensor<2>, Vec<usize>) {
        let dims = self.dims();
        let width = dims[dims.len() - 1];
        let rows = dims[..dims.len() - 1].iter().product();
        (self.view([rows, width]), dims)
    }

    /// Applies a function of single elements.
    pub(crate) fn elementwise(self, function: impl FnOnce(Tensor<1>) -> Tensor<1>) -> Self {
        let dims = self.dims();
        let flat = self.view([dims.iter().product()]);
        Self::from(function(flat)).reshape(&dims)
    }
}
