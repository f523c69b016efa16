//! Convolutions, norms, linear layers and pools.

use super::super::dims::describe;
use super::super::ir::Dim;
use super::super::op::{Op, Pool};
use super::super::program::Argument;
use super::super::shape::{Form, infer};
use super::attributes::axis_of;
use super::dispatch::result;
use super::message::Node;
use super::problem::{Problem, Result};
use super::translate::{Handle, Translator, integer, integers, numbers, tensor};

/// The windows of a convolution or a pool.
struct Windows {
    kernel: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    /// What is added before and after, down and across.
    padding: [[usize; 2]; 2],
}

impl Windows {
    /// Reads the attributes of a node, for images of this size.
    fn of(node: &Node<'_>, kernel: [usize; 2], image: [usize; 2]) -> Result<Self> {
        let pair = |name: &str| -> Result<[usize; 2]> {
            match node.integers(name) {
                None => Ok([1, 1]),
                Some(values) => positive(name, values),
            }
        };
        let (stride, dilation) = (pair("strides")?, pair("dilations")?);
        let padding = match node.text("auto_pad", "NOTSET").as_str() {
            "VALID" => [[0; 2]; 2],
            "NOTSET" | "" => match node.integers("pads") {
                None => [[0; 2]; 2],
                Some(&[top, left, bottom, right]) => {
                    let size = |value: i64| {
                        usize::try_from(value).map_err(|_| format!("padding of {value}"))
                    };
                    [[size(top)?, size(bottom)?], [size(left)?, size(right)?]]
                }
                Some(other) => return Err(format!("pads {other:?}, expected four").into()),
            },
            mode @ ("SAME_UPPER" | "SAME_LOWER") => {
                let mut padding = [[0; 2]; 2];
                for axis in 0..2 {
                    let span = (kernel[axis] - 1).saturating_mul(dilation[axis]);
                    let places = image[axis].div_ceil(stride[axis]);
                    let covered = (places.saturating_sub(1)).saturating_mul(stride[axis]) + 1;
                    let total = covered.saturating_add(span).saturating_sub(image[axis]);
                    let (less, more) = (total / 2, total.div_ceil(2));
                    padding[axis] = if mode == "SAME_UPPER" {
                        [less, more]
                    } else {
                        [more, less]
                    };
                }
                padding
            }
            other => return Err(format!("auto_pad `{other}`").into()),
        };
        Ok(Self {
            kernel,
            stride,
            dilation,
            padding,
        })
    }

    /// Returns what is added on both sides, if it is the same.
    fn even(&self) -> Option<[usize; 2]> {
        let [[top, bottom], [left, right]] = self.padding;
        (top == bottom && left == right).then_some([top, left])
    }
}

fn positive(name: &str, values: &[i64]) -> Result<[usize; 2]> {
    let wrong = || format!("{name} {values:?}, expected two positive numbers");
    let &[rows, columns] = values else {
        return Err(wrong().into());
    };
    match (usize::try_from(rows), usize::try_from(columns)) {
        (Ok(rows), Ok(columns)) if rows > 0 && columns > 0 => Ok([rows, columns]),
        _ => Err(wrong().into()),
    }
}

/// Returns the height and width of images.
fn image(x: &Handle) -> Result<[usize; 2]> {
    match x.dims.as_slice() {
        [_, _, height, width] if !height.batch && !width.batch => Ok([height.size, width.size]),
        dims => Err(Problem::with_hint(
            format!("it reads {}, expected images [b, c, h, w]", describe(dims)),
            "only networks of two-dimensional convolutions and pools can be imported",
        )),
    }
}

impl Translator<'_> {
    pub(super) fn convolution(&mut self, node: &Node<'_>) -> Result<Handle> {
        let owner = node.input(1).unwrap_or_default().to_owned();
        let mut x = self.tensor(node, 0)?;
        let weight = self.tensor(node, 1)?;
        let size = image(&x)?;
        let [out, _, rows, columns] = weight.dims[..] else {
            return Err(format!("its weight is {}", describe(&weight.dims)).into());
        };
        let kernel = positive("kernel", &[rows.size as i64, columns.size as i64])?;
        let windows = Windows::of(node, kernel, size)?;
        let groups = usize::try_from(node.integer("group", 1)).map_err(|_| "negative groups")?;
        let op = Op::Conv2d {
            stride: windows.stride,
            padding: windows.padding,
            dilation: windows.dilation,
            groups,
        };
        let dims = infer(&op, &[Form::Shaped(&x.dims), Form::Shaped(&weight.dims)])?;
        let bias = self.bias(node, 2, &owner, &[out])?;
        let padding = windows.even();
        if padding.is_none() {
            x = self.padded_image(&x, windows.padding, 0.0, node)?;
        }
        let arguments = vec![
            ("input", tensor(&x.name)),
            ("weight", tensor(&weight.name)),
            ("bias", bias),
            ("stride", numbers(&windows.stride)),
            ("padding", numbers(&padding.unwrap_or_default())),
            ("dilation", numbers(&windows.dilation)),
            ("groups", integer(groups as i64)),
        ];
        let name = result(node)?;
        Ok(self.call("aten.conv2d.default", arguments, name, dims, x.outer))
    }

    /// Returns the bias of a layer as an argument. One that is left out, or known to be zero everywhere, is none.
    fn bias(
        &mut self,
        node: &Node<'_>,
        index: usize,
        owner: &str,
        shape: &[Dim],
    ) -> Result<Argument> {
        if node.input(index).is_none() {
            return Ok(Argument::None);
        }
        if self.is_known(node, index) {
            let known = self.known(node, index)?;
            let zero = known.and_then(|known| known.real().ok());
            if zero.is_some_and(|values| values.iter().all(|&value| value == 0.0)) {
                return Ok(Argument::None);
            }
        }
        let bias = self.part(node, index, "bias", owner)?;
        if bias.dims != shape {
            let (found, expected) = (describe(&bias.dims), describe(shape));
            return Err(format!("its bias is {found}, expected {expected}").into());
        }
        Ok(tensor(&bias.name))
    }

    /// Surrounds images with a number, by different amounts on each side.
    fn padded_image(
        &mut self,
        x: &Handle,
        padding: [[usize; 2]; 2],
        value: f64,
        node: &Node<'_>,
    ) -> Result<Handle> {
        let [[top, bottom], [left, right]] = padding;
        let op = Op::Pad {
            padding: vec![[0, 0], [0, 0], padding[0], padding[1]],
            value,
        };
        let dims = infer(&op, &[Form::Shaped(&x.dims)])?;
        let name = self.fresh(&format!("{}.padded", result(node)?));
        let arguments = vec![
            ("self", tensor(&x.name)),
            ("pad", numbers(&[left, right, top, bottom])),
            ("value", Argument::Float(value)),
        ];
        Ok(self.call(
            "aten.constant_pad_nd.default",
            arguments,
            &name,
            dims,
            x.outer,
        ))
    }

    pub(super) fn batch_norm(&mut self, node: &Node<'_>) -> Result<Handle> {
        let x = self.tensor(node, 0)?;
        let owner = node.inputs.get(1..5).unwrap_or_default().join(" ");
        let parts = ["weight", "bias", "running_mean", "running_var"];
        let mut handles = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            handles.push(self.part(node, index + 1, part, &owner)?);
        }
        let mut arguments = vec![("input", tensor(&x.name))];
        for (part, handle) in parts.iter().zip(&handles) {
            arguments.push((part, tensor(&handle.name)));
        }
        // ONNX counts the share of the old statistics, PyTorch that of the batch.
        let momentum = ((1.0 - node.float("momentum", 0.9)) * 1e7).round() / 1e7;
        arguments.extend([
            ("training", Argument::Bool(false)),
            ("momentum", Argument::Float(momentum)),
            ("eps", Argument::Float(node.float("epsilon", 1e-5))),
        ]);
        let name = result(node)?;
        Ok(self.call("aten.batch_norm.default", arguments, name, x.dims, x.outer))
    }

    pub(super) fn layer_norm(&mut self, node: &Node<'_>) -> Result<Handle> {
        let x = self.tensor(node, 0)?;
        let axis = axis_of(node.integer("axis", -1), x.dims.len())?;
        let owner = node.inputs.get(1..).unwrap_or_default().join(" ");
        let weight = self.part(node, 1, "weight", &owner)?;
        let bias = match node.input(2) {
            Some(_) => tensor(&self.part(node, 2, "bias", &owner)?.name),
            None => Argument::None,
        };
        let shape = self.sizes(&x.dims[axis..]);
        let arguments = vec![
            ("input", tensor(&x.name)),
            ("normalized_shape", shape),
            ("weight", tensor(&weight.name)),
            ("bias", bias),
            ("eps", Argument::Float(node.float("epsilon", 1e-5))),
        ];
        let name = result(node)?;
        Ok(self.call("aten.layer_norm.default", arguments, name, x.dims, x.outer))
    }

    /// Normalises each channel of each image: a group norm with as many groups as channels.
    pub(super) fn instance_norm(&mut self, node: &Node<'_>) -> Result<Handle> {
        let x = self.tensor(node, 0)?;
        let groups = x.dims.get(1).map_or(0, |dim| dim.size);
        self.normalise_groups(node, &x, groups, result(node)?)
    }

    pub(super) fn group_norm(&mut self, node: &Node<'_>) -> Result<Handle> {
        let x = self.tensor(node, 0)?;
        let groups = node.integer("num_groups", 0);
        let groups = usize::try_from(groups).map_err(|_| format!("{groups} groups"))?;
        let name = result(node)?;
        if self.opset >= 21 {
            return self.normalise_groups(node, &x, groups, name);
        }
        // Below version 21 there is one scale for each group, and not for each channel.
        let channels = x.dims.get(1).map_or(0, |dim| dim.size);
        if groups == 0 || channels == 0 || !channels.is_multiple_of(groups) {
            return Err(format!("{groups} groups do not divide {channels} channels").into());
        }
        let mut split = x.dims.clone();
        split[1] = Dim::fixed(channels / groups);
        split.insert(1, Dim::fixed(groups));
        let [before, between] = [1, 2].map(|number| format!("{name}.groups.{number}"));
        let (before, between) = (self.fresh(&before), self.fresh(&between));
        let grouped = self.reshaped(&x, split, &before)?;
        let normalised = self.normalise_groups(node, &grouped, groups, &between)?;
        self.reshaped(&normalised, x.dims, name)
    }

    fn normalise_groups(
        &mut self,
        node: &Node<'_>,
        x: &Handle,
        groups: usize,
        name: &str,
    ) -> Result<Handle> {
        let owner = node.inputs.get(1..).unwrap_or_default().join(" ");
        let mut affine = [Argument::None, Argument::None];
        let plain = [(1, 1.0), (2, 0.0)].iter().all(|&(index, value)| {
            self.is_known(node, index)
                && matches!(self.known(node, index), Ok(Some(known))
                    if known.real().is_ok_and(|values| values.iter().all(|&v| v == value)))
        });
        if !plain {
            let weight = self.part(node, 1, "weight", &owner)?;
            let bias = self.part(node, 2, "bias", &owner)?;
            affine = [tensor(&weight.name), tensor(&bias.name)];
        }
        let [weight, bias] = affine;
        let arguments = vec![
            ("input", tensor(&x.name)),
            ("num_groups", integer(groups as i64)),
            ("weight", weight),
            ("bias", bias),
            ("eps", Argument::Float(node.float("epsilon", 1e-5))),
        ];
        let dims = x.dims.clone();
        Ok(self.call("aten.group_norm.default", arguments, name, dims, x.outer))
    }

    pub(super) fn max_pool(&mut self, node: &Node<'_>) -> Result<Handle> {
        if node.outputs.get(1).is_some_and(|name| !name.is_empty()) {
            return Err("it returns the places of the maxima, which is not supported".into());
        }
        let mut x = self.tensor(node, 0)?;
        let (mut windows, ceil) = pool_windows(node, &x)?;
        if windows.even().is_none() {
            // The most negative number never wins.
            x = self.padded_image(&x, windows.padding, f64::from(f32::MIN), node)?;
            windows.padding = [[0; 2]; 2];
        }
        let pool = pool_of(&windows, ceil);
        let dims = infer(&Op::MaxPool(pool), &[Form::Shaped(&x.dims)])?;
        let arguments = vec![
            ("self", tensor(&x.name)),
            ("kernel_size", numbers(&pool.kernel)),
            ("stride", numbers(&pool.stride)),
            ("padding", numbers(&pool.padding)),
            ("dilation", numbers(&pool.dilation)),
            ("ceil_mode", Argument::Bool(ceil)),
        ];
        let name = result(node)?;
        Ok(self.call("aten.max_pool2d.default", arguments, name, dims, x.outer))
    }

    pub(super) fn average_pool(&mut self, node: &Node<'_>) -> Result<Handle> {
        let mut x = self.tensor(node, 0)?;
        let (mut windows, ceil) = pool_windows(node, &x)?;
        let counted = node.integer("count_include_pad", 0) == 1;
        if windows.dilation != [1, 1] {
            return Err("an average over windows with gaps is not supported".into());
        }
        if windows.even().is_none() {
            if !counted || ceil {
                return Err(Problem::with_hint(
                    "its padding differs by side and is not counted, which is not supported",
                    "pad the images by an operation of its own before the pool",
                ));
            }
            x = self.padded_image(&x, windows.padding, 0.0, node)?;
            windows.padding = [[0; 2]; 2];
        }
        let pool = pool_of(&windows, ceil);
        let op = Op::AveragePool {
            pool,
            count_padding: counted,
            divisor: None,
        };
        let dims = infer(&op, &[Form::Shaped(&x.dims)])?;
        let arguments = vec![
            ("self", tensor(&x.name)),
            ("kernel_size", numbers(&pool.kernel)),
            ("stride", numbers(&pool.stride)),
            ("padding", numbers(&pool.padding)),
            ("ceil_mode", Argument::Bool(ceil)),
            ("count_include_pad", Argument::Bool(counted)),
        ];
        let name = result(node)?;
        Ok(self.call("aten.avg_pool2d.default", arguments, name, dims, x.outer))
    }

    /// Reduces axes, or all positions of images.
    pub(super) fn reduce(&mut self, node: &Node<'_>) -> Result<Handle> {
        let x = self.tensor(node, 0)?;
        let global = node.op.starts_with("Global");
        let knowns = self.knowns(node)?;
        let rank = x.dims.len();
        let axes = if global {
            (2..rank).collect()
        } else {
            let inputs: Vec<_> = knowns.iter().map(Option::as_ref).collect();
            match super::fold::integers(node, "axes", 1, &inputs)? {
                Some(axes) if !axes.is_empty() => {
                    let axes = axes.iter().map(|&axis| axis_of(axis, rank));
                    axes.collect::<Result<Vec<_>, _>>()?
                }
                _ if node.integer("noop_with_empty_axes", 0) == 1 => return Ok(x),
                _ => (0..rank).collect(),
            }
        };
        let keep = global || node.integer("keepdims", 1) == 1;
        let (target, axis_name) = match node.op.as_str() {
            "ReduceSum" => ("aten.sum.dim_IntList", "dim"),
            "ReduceMax" | "GlobalMaxPool" => ("aten.amax.default", "dim"),
            "ReduceL2" => ("aten.linalg_vector_norm.default", "dim"),
            _ => ("aten.mean.dim", "dim"),
        };
        let mut sorted = axes.clone();
        sorted.sort_unstable();
        let op = Op::Reduce {
            how: super::super::op::Reduction::Mean,
            axes: sorted,
            keep,
        };
        let dims = infer(&op, &[Form::Shaped(&x.dims)])?;
        let axes = integers(axes.iter().map(|&axis| axis as i64));
        let mut arguments = vec![("self", tensor(&x.name))];
        if node.op == "ReduceL2" {
            arguments.push(("ord", Argument::Float(2.0)));
        }
        arguments.extend([(axis_name, axes), ("keepdim", Argument::Bool(keep))]);
        let name = result(node)?;
        Ok(self.call(target, arguments, name, dims, x.outer))
    }
}

fn pool_of(windows: &Windows, ceil: bool) -> Pool {
    Pool {
        kernel: windows.kernel,
        stride: windows.stride,
        padding: windows.even().unwrap_or_default(),
        dilation: windows.dilation,
        ceil,
    }
}

fn pool_windows(node: &Node<'_>, x: &Handle) -> Result<(Windows, bool)> {
    let kernel = node.integers("kernel_shape").unwrap_or_default();
    let kernel = positive("kernel_shape", kernel)?;
    let windows = Windows::of(node, kernel, image(x)?)?;
    Ok((windows, node.integer("ceil_mode", 0) == 1))
}
