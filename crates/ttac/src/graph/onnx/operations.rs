//! What each operation of a graph is in ONNX.

use super::super::ir::Node;
use super::super::op::{Function, Op, Pool, Reduction};
use super::write::{Builder, float, integer, integers, text};

impl Builder<'_> {
    /// Adds the operations that a node of the graph becomes. The last of them makes its result.
    pub(super) fn operation(&mut self, node: &Node, inputs: &[String]) {
        let read: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let x = read[0];
        match &node.op {
            Op::Conv2d {
                stride,
                padding: [[top, bottom], [left, right]],
                dilation,
                groups,
            } => {
                let attributes = vec![
                    integers("strides", stride),
                    integers("pads", &[*top, *left, *bottom, *right]),
                    integers("dilations", dilation),
                    integer("group", *groups as i64),
                ];
                self.add("Conv", &read, attributes);
            }
            Op::BatchNorm { epsilon, momentum } => {
                // ONNX counts the share of the old statistics.
                let attributes = vec![
                    float("epsilon", *epsilon),
                    float("momentum", 1.0 - momentum),
                ];
                self.add("BatchNormalization", &read, attributes);
            }
            Op::Standardise { epsilon } => self.standardise(node, &read, *epsilon),
            Op::LayerNorm { epsilon } => self.layer_norm(node, &read, *epsilon),
            Op::GroupNorm { groups, epsilon } => self.group_norm(node, &read, *groups, *epsilon),
            Op::Linear => self.linear(node, &read),
            Op::MatMul => {
                self.add("MatMul", &read, vec![]);
            }
            Op::Attention { scale } => self.attention(&read, *scale),
            Op::Softmax { axis } => {
                self.add("Softmax", &read, vec![integer("axis", *axis as i64)]);
            }
            Op::Apply(function) => self.function(*function, x),
            Op::Add => {
                self.add("Add", &read, vec![]);
            }
            Op::Sub => {
                self.add("Sub", &read, vec![]);
            }
            Op::Mul => {
                self.add("Mul", &read, vec![]);
            }
            Op::Div => {
                self.add("Div", &read, vec![]);
            }
            Op::Reduce { how, axes, keep } => self.reduce(x, *how, axes, *keep),
            Op::MaxPool(pool) => self.max_pool(node, x, pool),
            Op::AveragePool {
                pool,
                count_padding,
                divisor,
            } => self.average_pool(node, x, pool, *count_padding, *divisor),
            Op::Dropout { probability } => {
                let ratio = self.number(*probability);
                self.add("Dropout", &[x, &ratio], vec![]);
            }
            _ => self.movement(node, &read),
        }
    }

    /// Adds an operation that moves elements.
    fn movement(&mut self, node: &Node, read: &[&str]) {
        let x = read[0];
        match &node.op {
            Op::Reshape { shape } => {
                self.reshape(x, shape);
            }
            Op::Permute { axes } => {
                self.add("Transpose", read, vec![integers("perm", axes)]);
            }
            Op::Slice {
                axis,
                start,
                end,
                step,
            } => {
                let lists = [*start, *end, *axis, *step];
                let [start, end, axis, step] = lists.map(|value| self.integers(&[value as i64]));
                self.add("Slice", &[x, &start, &end, &axis, &step], vec![]);
            }
            Op::Concat { axis } => {
                self.add("Concat", read, vec![integer("axis", *axis as i64)]);
            }
            Op::Pad { padding, value } => {
                self.pad(x, padding, *value);
            }
            Op::Expand { shape } => {
                let sizes = self.sizes(shape);
                self.add("Expand", &[x, &sizes], vec![]);
            }
            Op::Gather { axis, indices, .. } => {
                let list = self.graph.indices[*indices].iter();
                let list: Vec<i64> = list.map(|&index| i64::from(index)).collect();
                self.gather(x, *axis, &list);
            }
            Op::Resize { size } => self.resize(node, x, *size),
            other => unreachable!("{} computes something", other.name()),
        }
    }

    fn pad(&mut self, x: &str, padding: &[[usize; 2]], value: f64) -> String {
        let before = padding.iter().map(|[before, _]| *before as i64);
        let after = padding.iter().map(|[_, after]| *after as i64);
        let pads: Vec<i64> = before.chain(after).collect();
        let (pads, value) = (self.integers(&pads), self.number(value));
        self.add("Pad", &[x, &pads, &value], vec![text("mode", "constant")])
    }

    fn gather(&mut self, x: &str, axis: usize, indices: &[i64]) -> String {
        let list = self.integers(indices);
        self.add("Gather", &[x, &list], vec![integer("axis", axis as i64)])
    }

    /// Takes the nearest pixel. Multiples are a resize; other sizes are taken by their indices, which no rounding changes.
    fn resize(&mut self, node: &Node, x: &str, size: [usize; 2]) {
        let shape = self.shape(node.inputs[0]);
        let from = [shape[2].size, shape[3].size];
        if (0..2).all(|axis| size[axis].is_multiple_of(from[axis])) {
            let scales = [size[0] / from[0], size[1] / from[1]].map(|scale| scale as f32);
            let scales = self.floats(&[4], &[1.0, 1.0, scales[0], scales[1]]);
            let attributes = vec![
                text("mode", "nearest"),
                text("coordinate_transformation_mode", "asymmetric"),
                text("nearest_mode", "floor"),
            ];
            self.add("Resize", &[x, "", &scales], attributes);
            return;
        }
        let mut made = x.to_owned();
        for axis in 0..2 {
            let indices = (0..size[axis]).map(|i| (i * from[axis] / size[axis]) as i64);
            made = self.gather(&made, axis + 2, &indices.collect::<Vec<_>>());
        }
    }

    fn linear(&mut self, node: &Node, read: &[&str]) {
        if self.shape(node.inputs[0]).len() == 2 {
            self.add("Gemm", read, vec![integer("transB", 1)]);
            return;
        }
        let weight = self.add("Transpose", &read[1..2], vec![integers("perm", &[1, 0])]);
        let product = self.add("MatMul", &[read[0], &weight], vec![]);
        if let Some(bias) = read.get(2) {
            self.add("Add", &[&product, bias], vec![]);
        }
    }

    fn attention(&mut self, read: &[&str], scale: f64) {
        let keys = self.add(
            "Transpose",
            &read[1..2],
            vec![integers("perm", &[0, 1, 3, 2])],
        );
        let scores = self.add("MatMul", &[read[0], &keys], vec![]);
        let scale = self.number(scale);
        let mut scores = self.add("Mul", &[&scores, &scale], vec![]);
        if let Some(mask) = read.get(3) {
            scores = self.add("Add", &[&scores, mask], vec![]);
        }
        let shares = self.add("Softmax", &[&scores], vec![integer("axis", -1)]);
        self.add("MatMul", &[&shares, read[2]], vec![]);
    }

    fn layer_norm(&mut self, node: &Node, read: &[&str], epsilon: f64) {
        let mut read: Vec<String> = read.iter().map(|&name| name.to_owned()).collect();
        if read.len() == 1 {
            let shape = self.shape(node.inputs[0]);
            let size = shape.last().map_or(1, |dim| dim.size);
            read.push(self.floats(&[size], &vec![1.0; size]));
        }
        let read: Vec<&str> = read.iter().map(String::as_str).collect();
        let attributes = vec![integer("axis", -1), float("epsilon", epsilon)];
        self.add("LayerNormalization", &read, attributes);
    }

    /// Normalises groups as the channels of a narrower value, and scales and shifts afterwards. This is also how PyTorch's
    /// exporter writes a group norm.
    fn group_norm(&mut self, node: &Node, read: &[&str], groups: usize, epsilon: f64) {
        let shape = self.shape(node.inputs[0]);
        let sizes = self.integers(&[0, groups as i64, -1]);
        let grouped = self.add("Reshape", &[read[0], &sizes], vec![]);
        let one = self.floats(&[groups], &vec![1.0; groups]);
        let zero = self.floats(&[groups], &vec![0.0; groups]);
        let attributes = vec![float("epsilon", epsilon)];
        let norm = self.add(
            "InstanceNormalization",
            &[&grouped, &one, &zero],
            attributes,
        );
        let mut made = self.reshape(&norm, &shape);
        for (tensor, op) in read[1..].iter().zip(["Mul", "Add"]) {
            let along = self.along_channels(tensor, shape.len());
            made = self.add(op, &[&made, &along], vec![]);
        }
    }

    /// Gives a vector of channels the axes that stand behind them.
    fn along_channels(&mut self, vector: &str, rank: usize) -> String {
        if rank <= 2 {
            return vector.to_owned();
        }
        let axes: Vec<i64> = (1..=rank as i64 - 2).collect();
        let axes = self.integers(&axes);
        self.add("Unsqueeze", &[vector, &axes], vec![])
    }

    /// `(x - mean) / sqrt(variance + epsilon)` over all axes but the second, of a weight.
    fn standardise(&mut self, node: &Node, read: &[&str], epsilon: f64) {
        let rank = self.shape(node.inputs[0]).len();
        let axes: Vec<usize> = (0..rank).filter(|&axis| axis != 1).collect();
        let over = || vec![integers("axes", &axes), integer("keepdims", 1)];
        let mean = self.add("ReduceMean", &[read[0]], over());
        let centred = self.add("Sub", &[read[0], &mean], vec![]);
        let squares = self.add("Mul", &[&centred, &centred], vec![]);
        let variance = self.add("ReduceMean", &[&squares], over());
        let epsilon = self.number(epsilon);
        let raised = self.add("Add", &[&variance, &epsilon], vec![]);
        let deviation = self.add("Sqrt", &[&raised], vec![]);
        let made = self.add("Div", &[&centred, &deviation], vec![]);
        if let Some(weight) = read.get(1) {
            let along = self.along_channels(weight, rank);
            self.add("Mul", &[&made, &along], vec![]);
        }
    }

    fn reduce(&mut self, x: &str, how: Reduction, axes: &[usize], keep: bool) {
        let keep = integer("keepdims", i64::from(keep));
        let op = match how {
            Reduction::Mean => "ReduceMean",
            Reduction::Maximum => "ReduceMax",
            Reduction::Euclidean => "ReduceL2",
            // Since version 13 a sum reads its axes, before all other reductions do.
            Reduction::Sum => {
                let list: Vec<i64> = axes.iter().map(|&axis| axis as i64).collect();
                let list = self.integers(&list);
                self.add("ReduceSum", &[x, &list], vec![keep]);
                return;
            }
        };
        self.add(op, &[x], vec![integers("axes", axes), keep]);
    }

    /// Tells whether windows hang over the far edge as ONNX's mode for that has it, and what has to be added behind the images
    /// where they do not: ONNX counts a last window that begins in the padding, PyTorch leaves it out.
    fn overhang(&self, node: &Node, pool: &Pool) -> (bool, [usize; 2]) {
        let (from, to) = (self.shape(node.inputs[0]), self.graph.shape(node.output));
        let mut added = [0, 0];
        let mut usual = pool.ceil;
        for axis in 0..2 {
            let span = (pool.kernel[axis] - 1) * pool.dilation[axis] + 1;
            let (places, stride) = (to[axis + 2].size, pool.stride[axis]);
            let padded = from[axis + 2].size + 2 * pool.padding[axis];
            added[axis] = ((places - 1) * stride + span).saturating_sub(padded);
            usual &= padded.saturating_sub(span).div_ceil(stride) + 1 == places;
        }
        if usual {
            (true, [0, 0])
        } else {
            (false, added)
        }
    }

    fn max_pool(&mut self, node: &Node, x: &str, pool: &Pool) {
        let (ceil, [down, across]) = self.overhang(node, pool);
        let [top, left] = pool.padding;
        let attributes = vec![
            integers("kernel_shape", &pool.kernel),
            integers("strides", &pool.stride),
            integers("pads", &[top, left, top + down, left + across]),
            integers("dilations", &pool.dilation),
            integer("ceil_mode", i64::from(ceil)),
        ];
        self.add("MaxPool", &[x], attributes);
    }

    fn average_pool(
        &mut self,
        node: &Node,
        x: &str,
        pool: &Pool,
        counted: bool,
        divisor: Option<usize>,
    ) {
        let counts = counted && pool.padding != [0, 0];
        // Runtimes disagree on what counts where windows hang over padding that counts, so that is written out.
        let explicit = Pool {
            ceil: pool.ceil && !counts && divisor.is_none(),
            ..*pool
        };
        let (ceil, [down, across]) = self.overhang(node, &explicit);
        let [top, left] = pool.padding;
        let mut x = x.to_owned();
        let window = [
            integers("kernel_shape", &pool.kernel),
            integers("strides", &pool.stride),
        ];
        let padded = |bottom: usize, right: usize| {
            vec![[0, 0], [0, 0], [top, top + bottom], [left, left + right]]
        };
        if let Some(divisor) = divisor {
            // The mean over whole windows, of images with all their zeros, is the sum over the size of the kernel.
            x = self.pad(&x, &padded(down, across), 0.0);
            let mean = self.add("AveragePool", &[&x], window.into());
            let factor = (pool.kernel[0] * pool.kernel[1]) as f64 / divisor as f64;
            let factor = self.number(factor);
            self.add("Mul", &[&mean, &factor], vec![]);
            return;
        }
        let mut pads = [top, left, top + down, left + across];
        if counts && (down, across) != (0, 0) {
            // Padding counts, but what a window hangs over does not: the former becomes part of the images.
            x = self.pad(&x, &padded(0, 0), 0.0);
            pads = [0, 0, down, across];
        }
        let include = counts && (down, across) == (0, 0);
        let mut attributes: Vec<_> = window.into();
        attributes.push(integers("pads", &pads));
        attributes.push(integer("count_include_pad", i64::from(include)));
        attributes.push(integer("ceil_mode", i64::from(ceil)));
        self.add("AveragePool", &[&x], attributes);
    }

    fn function(&mut self, function: Function, x: &str) {
        let plain = match function {
            Function::Relu => "Relu",
            Function::Sigmoid => "Sigmoid",
            Function::HardSwish => "HardSwish",
            Function::Softplus => "Softplus",
            Function::Tanh => "Tanh",
            Function::Exp => "Exp",
            Function::Log => "Log",
            Function::Sqrt => "Sqrt",
            Function::Sin => "Sin",
            Function::Cos => "Cos",
            Function::Erf => "Erf",
            Function::Abs => "Abs",
            other => return self.composed(other, x),
        };
        self.add(plain, &[x], vec![]);
    }

    /// Adds a function that has parameters, or that is composed of others.
    fn composed(&mut self, function: Function, x: &str) {
        match function {
            Function::HardSigmoid => {
                let attributes = vec![float("alpha", 1.0 / 6.0), float("beta", 0.5)];
                self.add("HardSigmoid", &[x], attributes);
            }
            Function::LeakyRelu { slope } => {
                self.add("LeakyRelu", &[x], vec![float("alpha", slope)]);
            }
            Function::Elu { alpha } => {
                self.add("Elu", &[x], vec![float("alpha", alpha)]);
            }
            Function::Clip { min, max } => {
                let (min, max) = (self.number(min), self.number(max));
                self.add("Clip", &[x, &min, &max], vec![]);
            }
            Function::Power { exponent } => {
                let exponent = self.number(exponent);
                self.add("Pow", &[x, &exponent], vec![]);
            }
            Function::Silu => {
                let share = self.add("Sigmoid", &[x], vec![]);
                self.add("Mul", &[x, &share], vec![]);
            }
            Function::Mish => {
                let soft = self.add("Softplus", &[x], vec![]);
                let share = self.add("Tanh", &[&soft], vec![]);
                self.add("Mul", &[x, &share], vec![]);
            }
            Function::GeluTanh => {
                let (three, small) = (self.number(3.0), self.number(0.044_715));
                let cube = self.add("Pow", &[x, &three], vec![]);
                let cube = self.add("Mul", &[&cube, &small], vec![]);
                let sum = self.add("Add", &[x, &cube], vec![]);
                let scale = self.number((2.0 / std::f64::consts::PI).sqrt());
                let inner = self.add("Mul", &[&sum, &scale], vec![]);
                let share = self.add("Tanh", &[&inner], vec![]);
                self.half_of_one_more(x, &share);
            }
            // All others are operations of ONNX, and do not get here.
            _ => {
                let root = self.number(std::f64::consts::SQRT_2);
                let scaled = self.add("Div", &[x, &root], vec![]);
                let share = self.add("Erf", &[&scaled], vec![]);
                self.half_of_one_more(x, &share);
            }
        }
    }

    /// `x (1 + share) / 2`, the end of both forms of GELU.
    fn half_of_one_more(&mut self, x: &str, share: &str) {
        let (one, half) = (self.number(1.0), self.number(0.5));
        let more = self.add("Add", &[share, &one], vec![]);
        let product = self.add("Mul", &[x, &more], vec![]);
        self.add("Mul", &[&product, &half], vec![]);
    }
}
