//! Computing the steps of a plan.

use burn::tensor::{Int, Tensor, TensorData};
use rand::RngExt;
use ttac_kernels::{Activation, Before, ConvOptions};

use super::any::{Any, FromAny};
use super::arithmetic;
use super::plan::Plan;
use super::weight::Weight;
use super::work::{Conv, Norm, Read, Work};
use crate::backbone::{ImageMoments, NormLayer, NormMode, RunningStatistics};
use crate::graph::ir::{Dim, Graph};
use crate::rng::seeded;

/// One pass through a network: its tensors, and how its norms work.
pub(crate) struct Pass<'a> {
    /// The network's graph.
    pub graph: &'a Graph,
    /// The network's tensors, in the order of the graph.
    pub tensors: &'a [Weight],
    /// The statistics that batch norms use.
    pub norm: NormMode<'a>,
    /// What dropped elements are drawn from; nothing is dropped without it.
    pub draw: Option<u64>,
}

impl Plan {
    /// Computes the result from the start.
    pub(crate) fn run(&self, start: Any, pass: &Pass<'_>) -> Any {
        let mut slots: Vec<Option<Any>> = vec![None; self.slots];
        let batch = start.dims()[0];
        slots[self.start] = Some(start);
        for (number, step) in self.steps.iter().enumerate() {
            let mut run = Run {
                pass,
                slots: &mut slots,
                batch,
                number,
            };
            let result = run.step(&step.work);
            slots[step.output] = Some(result);
        }
        let result = slots[self.result].take();
        result.expect("a plan computes its result")
    }
}

/// The state of a pass at one step.
struct Run<'a, 'p> {
    pass: &'p Pass<'p>,
    slots: &'a mut [Option<Any>],
    batch: usize,
    number: usize,
}

impl<'p> Run<'_, 'p> {
    /// Reads a value or a tensor.
    fn read(&mut self, read: Read) -> Any {
        match read {
            Read::Slot { slot, last: true } => self.slots[slot]
                .take()
                .expect("a slot is read when it is filled"),
            Read::Slot { slot, last: false } => self.slots[slot]
                .clone()
                .expect("a slot is read when it is filled"),
            Read::Tensor(tensor) => self.pass.tensors[tensor.0 as usize].value(),
            Read::Scalar(_) => unreachable!("only arithmetic reads numbers"),
        }
    }

    /// Reads a tensor with a known number of axes.
    fn ranked<const D: usize>(&mut self, read: Read) -> Tensor<D>
    where
        Tensor<D>: FromAny,
    {
        match Tensor::from_any(self.read(read)) {
            Ok(tensor) => tensor,
            Err(other) => unreachable!("expected {D} axes, found {:?}", other.dims()),
        }
    }

    fn optional<const D: usize>(&mut self, read: Option<Read>) -> Option<Tensor<D>>
    where
        Tensor<D>: FromAny,
    {
        read.map(|read| self.ranked(read))
    }

    fn sizes(&self, shape: &[Dim]) -> Vec<usize> {
        shape.iter().map(|dim| dim.at(self.batch)).collect()
    }

    fn step(&mut self, work: &Work) -> Any {
        match work {
            Work::Conv { x, conv, residual } => {
                let x = self.ranked(*x);
                let residual = self.optional(*residual);
                self.convolve(x, conv, residual).into()
            }
            Work::Norm { x, norm, residual } => self.normalise(*x, norm, *residual),
            Work::ConvNorm {
                x,
                conv,
                norm,
                residual,
            } => {
                let x = self.ranked(*x);
                let residual = self.optional(*residual);
                self.convolve_and_normalise(x, conv, norm, residual).into()
            }
            Work::NormConv {
                x,
                norm,
                conv,
                residual,
            } => {
                let x = self.ranked(*x);
                let residual = self.optional(*residual);
                self.normalise_and_convolve(x, norm, conv, residual).into()
            }
            Work::Standardise { x, weight, epsilon } => {
                let (x, weight) = (self.read(*x), self.optional(*weight));
                arithmetic::standardise(x, weight, *epsilon)
            }
            Work::LayerNorm { x, affine, epsilon } => {
                let x = self.read(*x);
                let affine = affine.map(|one| self.optional(one));
                arithmetic::layer_norm(x, affine, *epsilon)
            }
            Work::GroupNorm {
                x,
                affine,
                groups,
                epsilon,
                activation,
            } => {
                let x = self.read(*x);
                let affine = affine.map(|one| self.optional(one));
                arithmetic::group_norm(x, affine, *groups, *epsilon, *activation)
            }
            Work::Linear { .. } => self.linear(work),
            Work::PackedAttention { .. } | Work::Attention { .. } => self.attend(work),
            Work::MatMul { a, b, orders } => {
                let [a, b] = [(a, &orders[0]), (b, &orders[1])]
                    .map(|(read, order)| self.read(*read).permute(order));
                arithmetic::mat_mul(a, b)
            }
            Work::Add { a, b, activation } => {
                if *activation == Activation::None {
                    return self.binary(*a, *b, arithmetic::Operation::Add);
                }
                let (a, b) = (self.read(*a), self.read(*b));
                arithmetic::add_activate(a, b, *activation)
            }
            Work::Sub { a, b } => self.binary(*a, *b, arithmetic::Operation::Sub),
            Work::Mul { a, b } => self.binary(*a, *b, arithmetic::Operation::Mul),
            Work::Div { a, b } => self.binary(*a, *b, arithmetic::Operation::Div),
            Work::ScaleChannels { x, scale } => {
                let x: Tensor<4> = self.ranked(*x);
                let [batch, _, _, channels] = x.dims();
                let scale = self.read(*scale).view([batch, channels]);
                ttac_kernels::scale_channels(x, scale).into()
            }
            Work::ScaleLast { x, scale, residual } => {
                let ((x, dims), scale) = (self.read(*x).rows(), self.ranked(*scale));
                let residual = residual.map(|other| self.read(other).rows().0);
                Any::from(ttac_kernels::scale_last(x, scale, residual)).reshape(&dims)
            }
            other => self.unary(other),
        }
    }

    /// Computes a step that reads one value, or joins several.
    fn unary(&mut self, work: &Work) -> Any {
        match work {
            Work::Softmax { x, axis } => arithmetic::softmax(self.read(*x), *axis),
            Work::Apply { x, function } => arithmetic::apply(self.read(*x), *function),
            Work::Reduce {
                x,
                how,
                axes,
                shape,
            } => {
                let shape = self.sizes(shape);
                arithmetic::reduce(self.read(*x), *how, axes).reshape(&shape)
            }
            Work::GlobalAverage { x, shape } => {
                let shape = self.sizes(shape);
                let mean = ttac_kernels::global_average_pool(self.ranked(*x));
                Any::from(mean).reshape(&shape)
            }
            Work::Shortcut {
                x,
                channels,
                stride,
            } => ttac_kernels::shortcut_a(self.ranked(*x), *channels, *stride).into(),
            Work::MaxPool { x, pool } => arithmetic::max_pool(self.ranked(*x), *pool).into(),
            Work::AveragePool {
                x,
                pool,
                count_padding,
                divisor,
            } => arithmetic::average_pool(self.ranked(*x), *pool, *count_padding, *divisor).into(),
            Work::Resize { x, size } => arithmetic::resize(self.ranked(*x), *size).into(),
            Work::Reshape { x, shape } => {
                let shape = self.sizes(shape);
                self.read(*x).reshape(&shape)
            }
            Work::Reorder { x, places } => arithmetic::reorder(self.read(*x), places),
            Work::Slice {
                x,
                axis,
                start,
                end,
                step,
            } => arithmetic::slice(self.read(*x), *axis, *start..*end, *step),
            Work::Concat { parts, axis } => {
                let parts = parts.iter().map(|&part| self.read(part)).collect();
                arithmetic::concat(parts, *axis)
            }
            Work::Pad { x, padding, value } => arithmetic::pad(self.read(*x), padding, *value),
            Work::Expand { x, shape } => {
                let shape = self.sizes(shape);
                arithmetic::expand(self.read(*x), &shape)
            }
            Work::Gather { x, axis, indices } => {
                let (x, indices) = (self.read(*x), &self.pass.graph.indices[*indices]);
                let (x, mut dims) = x.around(*axis);
                let list: Vec<i64> = indices.iter().map(|&index| i64::from(index)).collect();
                dims[*axis] = list.len();
                let list = TensorData::new(list, [dims[*axis]]);
                let list = Tensor::<1, Int>::from_data(list, &x.device());
                Any::from(x.select(1, list)).reshape(&dims)
            }
            Work::Dropout { x, probability } => {
                let x = self.read(*x);
                match self.pass.draw {
                    Some(draw) => self.drop_elements(x, *probability, draw),
                    None => x,
                }
            }
            _ => unreachable!("the other steps are computed elsewhere"),
        }
    }

    fn binary(&mut self, a: Read, b: Read, operation: arithmetic::Operation) -> Any {
        match (a, b) {
            (Read::Scalar(a), b) => arithmetic::from_number(a, self.read(b), operation),
            (a, Read::Scalar(b)) => arithmetic::with_number(self.read(a), b, operation),
            (a, b) => {
                let (a, b) = (self.read(a), self.read(b));
                arithmetic::binary(a, b, operation)
            }
        }
    }

    fn convolve(&mut self, x: Tensor<4>, conv: &Conv, residual: Option<Tensor<4>>) -> Tensor<4> {
        let weight = self.ranked(conv.weight);
        let bias = self.optional(conv.bias);
        ttac_kernels::conv2d_add(x, weight, bias, residual, conv.options())
    }

    /// Normalises a value whose channels come last.
    fn normalise(&mut self, x: Read, norm: &Norm, residual: Option<Read>) -> Any {
        let x = self.read(x);
        let dims = x.dims();
        let channels = dims[dims.len() - 1];
        // Batch norms of rows and sequences are those of images of one column.
        let image = match dims[..] {
            [batch, height, width, channels] => [batch, height, width, channels],
            _ => [dims.iter().product::<usize>() / channels, 1, 1, channels],
        };
        let residual = residual.map(|other| self.read(other).view(image));
        let (x, count) = (x.view(image), image[..3].iter().product());
        let running = self.running(norm);
        let (weight, bias) = (self.ranked(norm.weight), self.ranked(norm.bias));
        // Rows of a sequence are no images: as many of them as there are to one image belong together.
        let tracked = x.is_autodiff();
        let (weight, bias, statistics) =
            running.for_mode(self.pass.norm, (weight, bias), tracked, |through| {
                let places: usize = count / self.batch;
                let rows = x.clone().reshape([self.batch, places, 1, channels]);
                ImageMoments::of_images(&rows, through)
            });
        let out = ttac_kernels::batch_norm(x, weight, bias, residual, statistics, norm.options());
        running.follow(out.mean, out.variance, count, self.pass.norm);
        Any::from(out.y).reshape(&dims)
    }

    fn convolve_and_normalise(
        &mut self,
        x: Tensor<4>,
        conv: &Conv,
        norm: &Norm,
        residual: Option<Tensor<4>>,
    ) -> Tensor<4> {
        let (mean, variance) = self.running(norm).values();
        // A bias before a norm moves the mean that the norm subtracts.
        let mean = match self.optional(conv.bias) {
            Some(bias) => mean - bias,
            None => mean,
        };
        let (weight, gamma) = (self.ranked(conv.weight), self.ranked(norm.weight));
        let beta = self.ranked(norm.bias);
        ttac_kernels::conv_norm_inference(
            x,
            weight,
            conv.options(),
            gamma,
            beta,
            residual,
            (mean, variance),
            norm.options(),
        )
    }

    fn normalise_and_convolve(
        &mut self,
        x: Tensor<4>,
        norm: &Norm,
        conv: &Conv,
        residual: Option<Tensor<4>>,
    ) -> Tensor<4> {
        let [batch, height, width, _] = x.dims();
        let running = self.running(norm);
        let (gamma, beta) = (self.ranked(norm.weight), self.ranked(norm.bias));
        let weight = self.ranked(conv.weight);
        let tracked = x.is_autodiff();
        let (gamma, beta, statistics) =
            running.for_mode(self.pass.norm, (gamma, beta), tracked, |through| {
                ImageMoments::of_images(&x, through)
            });
        let out = ttac_kernels::norm_conv2d(
            x,
            gamma,
            beta,
            statistics,
            norm.options(),
            weight,
            residual,
            conv.options(),
        );
        running.follow(
            out.mean,
            out.variance,
            batch * height * width,
            self.pass.norm,
        );
        out.y
    }

    fn running(&self, norm: &Norm) -> RunningStatistics<'p> {
        let pass = self.pass;
        let tensor = |tensor: crate::graph::TensorId| &pass.tensors[tensor.0 as usize];
        let buffer = |one| tensor(one).buffer();
        let affine = |read| match read {
            Read::Tensor(one) => Some(tensor(one).id()),
            Read::Slot { .. } | Read::Scalar(_) => None,
        };
        RunningStatistics {
            mean: buffer(norm.mean),
            variance: buffer(norm.variance),
            momentum: norm.momentum,
            layer: NormLayer {
                weight: affine(norm.weight),
                bias: affine(norm.bias),
                mean: buffer(norm.mean).id,
                variance: buffer(norm.variance).id,
                epsilon: norm.epsilon,
            },
        }
    }

    fn linear(&mut self, work: &Work) -> Any {
        let Work::Linear {
            x,
            weight,
            bias,
            residual,
            before,
            classifier,
        } = work
        else {
            unreachable!("called for linear layers alone");
        };
        let (x, mut dims) = self.read(*x).rows();
        let weight: Tensor<2> = self.ranked(*weight);
        let bias = self.optional(*bias);
        let residual = residual.map(|other| self.read(other).rows().0);
        if let Some(last) = dims.last_mut() {
            *last = weight.dims()[0];
        }
        let y = if *classifier && *before == Activation::None {
            let y = x.matmul(weight.transpose());
            let y = match bias {
                Some(bias) => y + bias.unsqueeze(),
                None => y,
            };
            match residual {
                Some(residual) => y + residual,
                None => y,
            }
        } else {
            {
                let (x, before) = match before {
                    Activation::None => (x, Before::Nothing),
                    Activation::Gelu => (x, Before::Gelu),
                    Activation::GeluTanh => (x, Before::GeluTanh),
                    other => (ttac_kernels::activate(x, *other), Before::Nothing),
                };
                ttac_kernels::linear(x, weight, bias, before, residual)
            }
        };
        Any::from(y).reshape(&dims)
    }

    fn attend(&mut self, work: &Work) -> Any {
        match work {
            Work::PackedAttention { qkv, scale } => {
                // [b, t, 3, h, d] in memory.
                let dims = self.read(*qkv).dims();
                let x = self
                    .read(*qkv)
                    .view::<5>(std::array::from_fn(|axis| dims[axis]));
                let x = x.permute([2, 0, 3, 1, 4]);
                ttac_kernels::packed_attention(x, None, dims[1], *scale as f32).into()
            }
            Work::Attention {
                qkv,
                orders,
                mask,
                scale,
            } => {
                let mut parts = qkv.iter().zip(orders).map(|(read, order)| {
                    let part = self.read(*read).permute(order);
                    let dims = part.dims();
                    part.view([dims[0], dims[1], dims[2], dims[3]])
                });
                let mut part = || parts.next().expect("there are three of them");
                let (q, k, v) = (part(), part(), part());
                let mask = mask.map(|mask| {
                    let mask = self.read(mask);
                    let dims = mask.dims();
                    let mut shape = [1; 4];
                    shape[4 - dims.len()..].copy_from_slice(&dims);
                    mask.view(shape)
                });
                ttac_kernels::scaled_dot_product_attention(q, k, v, mask, *scale as f32).into()
            }
            _ => unreachable!("called for attention alone"),
        }
    }

    /// Sets elements to zero with a probability, and scales the others so that the mean stays.
    fn drop_elements(&self, x: Any, probability: f64, draw: u64) -> Any {
        let mut rng = seeded(draw, self.number as u64);
        x.elementwise(|x| {
            let [count] = x.dims();
            let keep = 1.0 - probability;
            let scale = if keep > 0.0 { (1.0 / keep) as f32 } else { 0.0 };
            let mask = (0..count).map(|_| {
                if rng.random::<f64>() < keep {
                    scale
                } else {
                    0.0
                }
            });
            let mask = TensorData::new(mask.collect::<Vec<f32>>(), [count]);
            let mask = Tensor::from_data(mask, &x.device());
            x * mask
        })
    }
}

impl Conv {
    fn options(&self) -> ConvOptions {
        ConvOptions {
            stride: self.stride,
            padding: self.padding,
            dilation: self.dilation,
            groups: self.groups,
        }
    }
}

impl Norm {
    fn options(&self) -> ttac_kernels::BatchNormOptions {
        ttac_kernels::BatchNormOptions {
            epsilon: self.epsilon as f32,
            activation: self.activation,
        }
    }
}
