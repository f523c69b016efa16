//! Functions of each element, and arithmetic with broadcasting.

use super::super::dims::broadcast;
use super::super::ir::Dim;
use super::super::program::{Argument, Role};
use super::attributes::widen;
use super::dispatch::result;
use super::message::Node;
use super::problem::{Problem, Result};
use super::translate::{Handle, Translator, Value, tensor};

impl Translator<'_> {
    /// Emits a function of each element.
    pub(super) fn apply(
        &mut self,
        node: &Node<'_>,
        target: &str,
        further: Vec<(&str, Argument)>,
    ) -> Result<Handle> {
        let x = self.tensor(node, 0)?;
        let mut arguments = vec![("self", tensor(&x.name))];
        arguments.extend(further);
        let name = result(node)?;
        Ok(self.call(target, arguments, name, x.dims, x.outer))
    }

    /// Emits arithmetic of a value with a number or another value.
    pub(super) fn binary(
        &mut self,
        target: &str,
        a: &Handle,
        other: Argument,
        dims: Vec<Dim>,
        name: &str,
    ) -> Handle {
        let arguments = vec![("self", tensor(&a.name)), ("other", other)];
        self.call(target, arguments, name, dims, a.outer)
    }

    pub(super) fn arithmetic(&mut self, node: &Node<'_>) -> Result<Handle> {
        let target = match node.op.as_str() {
            "Add" => "aten.add.Tensor",
            "Sub" => "aten.sub.Tensor",
            "Mul" => "aten.mul.Tensor",
            _ => "aten.div.Tensor",
        };
        let swaps = matches!(node.op.as_str(), "Add" | "Mul");
        let (mut first, mut second) = (0, 1);
        // Exporters write `bias + x` as often as `x + bias`; the weight comes second here.
        if swaps && self.is_fixed(node, 0)? && !self.is_fixed(node, 1)? {
            (first, second) = (1, 0);
        }
        let a = self.tensor(node, first)?;
        let name = result(node)?;
        if let Value::Known(known) = self.value(node, second)?
            && let Some(number) = known.single()
            && known.shape.len() <= a.dims.len()
        {
            let dims = a.dims.clone();
            return Ok(self.binary(target, &a, Argument::Float(widen(number)), dims, name));
        }
        let mut b = self.tensor(node, second)?;
        if let Some(weight) = self.products.get(&a.name).cloned()
            && target == "aten.add.Tensor"
            && b.dims.len() == 1
        {
            b = self.part(node, second, "bias", &weight)?;
        }
        let dims = broadcast(&a.dims, &b.dims)?;
        self.normalisation(&a, &b, dims.len(), name);
        let outer = a.outer.max(b.outer);
        let arguments = vec![("self", tensor(&a.name)), ("other", tensor(&b.name))];
        Ok(self.call(target, arguments, name, dims, outer))
    }

    /// Tells whether a value depends on no image, as far as its shape tells.
    fn is_fixed(&self, node: &Node<'_>, index: usize) -> Result<bool> {
        Ok(match self.value(node, index)? {
            Value::Known(_) => true,
            Value::Made(handle) => handle.dims.iter().all(|dim| !dim.batch),
        })
    }

    /// A tensor by which the input's channels are shifted or scaled, before anything else happens, is a mean or a deviation of
    /// the data: it belongs to the network, but is not learned.
    fn normalisation(&mut self, x: &Handle, constant: &Handle, rank: usize, name: &str) {
        let of_channels = |dims: &[Dim]| {
            let channels = (rank - 3).checked_sub(rank - dims.len());
            let mut axes = dims.iter().enumerate();
            axes.all(|(axis, dim)| dim.size == 1 || Some(axis) == channels)
        };
        if rank == 4 && self.normalised.contains(&x.name) && of_channels(&constant.dims) {
            self.normalised.insert(name.to_owned());
            let stored = self.program.tensors.get_mut(&constant.name);
            if let Some(stored) = stored.filter(|stored| stored.role == Role::Parameter) {
                stored.role = Role::Buffer;
            }
        }
    }

    /// Adds any number of values, one after the other.
    pub(super) fn sum(&mut self, node: &Node<'_>) -> Result<Handle> {
        let mut total = self.tensor(node, 0)?;
        for index in 1..node.inputs.len() {
            let other = self.tensor(node, index)?;
            let dims = broadcast(&total.dims, &other.dims)?;
            let name = if index + 1 == node.inputs.len() {
                result(node)?.to_owned()
            } else {
                self.fresh(&format!("{}.sum", result(node)?))
            };
            total = self.binary("aten.add.Tensor", &total, tensor(&other.name), dims, &name);
        }
        Ok(total)
    }

    /// A power, of a known number or of a weight.
    pub(super) fn power(&mut self, node: &Node<'_>) -> Result<Handle> {
        if self.is_known(node, 1) {
            let exponent = self.known(node, 1)?.and_then(|known| known.single());
            let exponent = exponent.ok_or("its exponent is no single number")?;
            let exponent = Argument::Float(widen(exponent));
            return self.apply(node, "aten.pow.Tensor_Scalar", vec![("exponent", exponent)]);
        }
        let (x, exponent) = (self.tensor(node, 0)?, self.tensor(node, 1)?);
        let dims = broadcast(&x.dims, &exponent.dims)?;
        let arguments = vec![
            ("self", tensor(&x.name)),
            ("exponent", tensor(&exponent.name)),
        ];
        let name = result(node)?;
        Ok(self.call("aten.pow.Tensor_Tensor", arguments, name, dims, x.outer))
    }

    /// The larger or the smaller of a value and a number.
    pub(super) fn bound(&mut self, node: &Node<'_>) -> Result<Handle> {
        let values: Vec<usize> = (0..node.inputs.len())
            .filter(|&index| !self.is_known(node, index))
            .collect();
        let (&[index], 2) = (values.as_slice(), node.inputs.len()) else {
            return Err(Problem::with_hint(
                "it compares two computed values, and only a number is supported",
                "export the network as `.pt2`",
            ));
        };
        let limit = self
            .known(node, 1 - index)?
            .and_then(|known| known.single());
        let limit = limit.ok_or("it compares with more than one number")?;
        let x = self.tensor(node, index)?;
        let side = if node.op == "Max" { "min" } else { "max" };
        let arguments = vec![
            ("self", tensor(&x.name)),
            (side, Argument::Float(widen(limit))),
        ];
        let name = result(node)?;
        Ok(self.call("aten.clamp.default", arguments, name, x.dims, x.outer))
    }

    pub(super) fn clip(&mut self, node: &Node<'_>) -> Result<Handle> {
        let mut arguments = Vec::new();
        for (index, side) in [(1, "min"), (2, "max")] {
            let Some(known) = self.known(node, index)? else {
                continue;
            };
            let limit = known.single().ok_or("its limits are no single numbers")?;
            arguments.push((side, Argument::Float(widen(limit))));
        }
        if arguments.is_empty() {
            return self.tensor(node, 0);
        }
        self.apply(node, "aten.clamp.default", arguments)
    }

    /// `min(max(alpha x + beta, 0), 1)`, which is PyTorch's with a sixth and a half.
    pub(super) fn hard_sigmoid(&mut self, node: &Node<'_>) -> Result<Handle> {
        let (alpha, beta) = (node.float("alpha", 0.2), node.float("beta", 0.5));
        // A sixth in single precision has seven digits.
        if (alpha - 1.0 / 6.0).abs() < 1e-6 && beta == 0.5 {
            return self.apply(node, "aten.hardsigmoid.default", vec![]);
        }
        let x = self.tensor(node, 0)?;
        let name = result(node)?;
        let [scaled, moved] = ["scaled", "moved"].map(|step| format!("{name}.{step}"));
        let (scaled, moved) = (self.fresh(&scaled), self.fresh(&moved));
        let dims = x.dims.clone();
        let alpha = Argument::Float(alpha);
        let scaled = self.binary("aten.mul.Tensor", &x, alpha, dims.clone(), &scaled);
        let beta = Argument::Float(beta);
        let moved = self.binary("aten.add.Tensor", &scaled, beta, dims.clone(), &moved);
        let arguments = vec![
            ("self", tensor(&moved.name)),
            ("min", Argument::Float(0.0)),
            ("max", Argument::Float(1.0)),
        ];
        Ok(self.call("aten.clamp.default", arguments, name, dims, x.outer))
    }
}
