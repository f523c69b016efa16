//! Linear layers, products of matrices and softmax.

use super::super::dims::describe;
use super::super::ir::Dim;
use super::super::op::Op;
use super::super::program::{Argument, Role, Stored, Values};
use super::super::shape::{Form, infer};
use super::attributes::axis_of;
use super::dispatch::result;
use super::message::Node;
use super::problem::{Problem, Result};
use super::translate::{Handle, Translator, integer, integers, tensor};

impl Translator<'_> {
    /// `alpha A B + beta C`, with matrices transposed as told: a linear layer in nearly all files.
    pub(super) fn gemm(&mut self, node: &Node<'_>) -> Result<Handle> {
        let name = result(node)?;
        let transposed = |which| node.integer(which, 0) == 1;
        let mut a = self.tensor(node, 0)?;
        if transposed("transA") {
            let turned = self.fresh(&format!("{name}.a"));
            a = self.permuted(&a, &[1, 0], &turned)?;
        }
        let b = self.tensor(node, 1)?;
        let weight = if transposed("transB") {
            b
        } else {
            self.turned(&b, name)?
        };
        let [outputs, _] = weight.dims[..] else {
            return Err(format!("its second input is {}", describe(&weight.dims)).into());
        };
        let (alpha, beta) = (node.float("alpha", 1.0), node.float("beta", 1.0));
        let bias = self.gemm_bias(node, beta, outputs)?;
        let plain = alpha == 1.0 && bias.is_none_or_fits(outputs);
        let made = if plain {
            name.to_owned()
        } else {
            self.fresh(&format!("{name}.product"))
        };
        let argument = match &bias {
            Bias::Of(bias) if plain => tensor(&bias.name),
            _ => Argument::None,
        };
        let mut product = self.linear(&a, &weight, argument, &made)?;
        if plain {
            return Ok(product);
        }
        if alpha != 1.0 {
            let scaled = self.fresh(&format!("{name}.scaled"));
            product = self.binary(
                "aten.mul.Tensor",
                &product,
                Argument::Float(alpha),
                product.dims.clone(),
                &scaled,
            );
        }
        let dims = product.dims.clone();
        let other = match bias {
            Bias::Of(bias) => tensor(&bias.name),
            Bias::None => Argument::Float(0.0),
        };
        Ok(self.binary("aten.add.Tensor", &product, other, dims, name))
    }

    fn gemm_bias(&mut self, node: &Node<'_>, beta: f64, outputs: Dim) -> Result<Bias> {
        if node.input(2).is_none() || beta == 0.0 {
            return Ok(Bias::None);
        }
        if beta != 1.0 {
            return Err(format!("beta of {beta}, expected 0 or 1").into());
        }
        let owner = node.input(1).unwrap_or_default().to_owned();
        let bias = self.part(node, 2, "bias", &owner)?;
        let fits = [
            vec![outputs],
            vec![Dim::fixed(1), outputs],
            vec![Dim::fixed(1)],
            vec![],
        ];
        if !fits.contains(&bias.dims) {
            return Err(format!("its third input is {}", describe(&bias.dims)).into());
        }
        Ok(Bias::Of(bias))
    }

    /// Emits `x weight^T + bias`, with a weight `[outputs, inputs]`.
    fn linear(
        &mut self,
        x: &Handle,
        weight: &Handle,
        bias: Argument,
        name: &str,
    ) -> Result<Handle> {
        let forms = [Form::Shaped(&x.dims), Form::Shaped(&weight.dims)];
        let dims = infer(&Op::Linear, &forms)?;
        let arguments = vec![
            ("input", tensor(&x.name)),
            ("weight", tensor(&weight.name)),
            ("bias", bias),
        ];
        Ok(self.call("aten.linear.default", arguments, name, dims, x.outer))
    }

    /// Returns a matrix the other way round. A tensor of the file is stored so, under a key that says it: where a linear layer
    /// wants `[outputs, inputs]`, files with folded constants have `[inputs, outputs]`.
    fn turned(&mut self, matrix: &Handle, name: &str) -> Result<Handle> {
        if let Some(original) = self.turned.get(&matrix.name) {
            return Ok(original.clone());
        }
        let turned = format!("{}.transposed", matrix.name);
        if self.program.tensors.contains_key(&turned) {
            let dims = matrix.dims.iter().rev().copied().collect();
            return Ok(Handle {
                name: turned,
                dims,
                outer: 1,
            });
        }
        let stored = self.program.tensors.get(&matrix.name);
        let Some(Stored {
            shape,
            values: Values::F32(values),
            ..
        }) = stored
        else {
            let turned = self.fresh(&format!("{name}.b"));
            return self.permuted(matrix, &[1, 0], &turned);
        };
        let &[rows, columns] = shape.as_slice() else {
            return Err(format!("its second input is {}", describe(&matrix.dims)).into());
        };
        let moved = (0..columns).flat_map(|c| (0..rows).map(move |r| r * columns + c));
        let values = moved.map(|place| values[place]).collect();
        let mut stored = stored.cloned().expect("it was found above");
        stored.values = Values::F32(values);
        stored.shape = vec![columns, rows];
        self.store_derived(&turned, stored);
        let dims = matrix.dims.iter().rev().copied().collect();
        Ok(Handle {
            name: turned,
            dims,
            outer: 1,
        })
    }

    /// Multiplies matrices. A product with a weight is a linear layer.
    pub(super) fn matmul(&mut self, node: &Node<'_>) -> Result<Handle> {
        let name = result(node)?;
        let (a, b) = (self.tensor(node, 0)?, self.tensor(node, 1)?);
        let weight = |translator: &Self, handle: &Handle| {
            handle.dims.len() == 2
                && (translator.turned.contains_key(&handle.name)
                    || translator
                        .program
                        .tensors
                        .get(&handle.name)
                        .is_some_and(|stored| stored.role == Role::Parameter))
        };
        if a.dims.len() >= 2 && weight(self, &b) && !weight(self, &a) {
            let turned = self.turned(&b, name)?;
            self.products.insert(name.to_owned(), turned.name.clone());
            return self.linear(&a, &turned, Argument::None, name);
        }
        let dims = infer(&Op::MatMul, &[Form::Shaped(&a.dims), Form::Shaped(&b.dims)])?;
        let arguments = vec![("self", tensor(&a.name)), ("other", tensor(&b.name))];
        let outer = a.outer.max(b.outer);
        Ok(self.call("aten.matmul.default", arguments, name, dims, outer))
    }

    pub(super) fn einsum(&mut self, node: &Node<'_>) -> Result<Handle> {
        let equation: String = node.text("equation", "");
        let equation: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
        let unclear = || format!("the equation `{equation}` is not supported");
        let (left, right) = equation.split_once("->").ok_or_else(unclear)?;
        let terms: Vec<&str> = left.split(',').collect();
        if terms.len() != node.inputs.len() || equation.contains('.') {
            return Err(unclear().into());
        }
        let mut sizes = std::collections::BTreeMap::new();
        let mut names = Vec::new();
        let mut outer = 1;
        for (index, term) in terms.iter().enumerate() {
            let x = self.tensor(node, index)?;
            if x.dims.len() != term.chars().count() {
                return Err(unclear().into());
            }
            sizes.extend(term.chars().zip(x.dims.iter().copied()));
            outer = outer.max(x.outer);
            names.push(Some(x.name));
        }
        let dims = right.chars().map(|letter| sizes.get(&letter).copied());
        let dims = dims.collect::<Option<Vec<Dim>>>().ok_or_else(unclear)?;
        let arguments = vec![
            ("equation", Argument::Text(equation.clone())),
            ("tensors", Argument::Tensors(names)),
        ];
        let name = result(node)?;
        Ok(self.call("aten.einsum.default", arguments, name, dims, outer))
    }

    pub(super) fn softmax(&mut self, node: &Node<'_>, target: &str) -> Result<Handle> {
        let x = self.tensor(node, 0)?;
        let default = if self.opset < 13 { 1 } else { -1 };
        let axis = axis_of(node.integer("axis", default), x.dims.len())?;
        let rest = &x.dims[axis + 1..];
        // Before version 13 all axes from the given one on share one sum.
        if self.opset < 13 && rest.iter().any(|&dim| dim != Dim::fixed(1)) {
            return Err(Problem::with_hint(
                "it normalises several axes together, as versions below 13 do",
                "export the network with opset 17",
            ));
        }
        let dims = infer(&Op::Softmax { axis }, &[Form::Shaped(&x.dims)])?;
        let arguments = vec![("self", tensor(&x.name)), ("dim", integer(axis as i64))];
        let name = result(node)?;
        Ok(self.call(target, arguments, name, dims, x.outer))
    }

    /// Emits a permutation of axes.
    pub(super) fn permuted(&mut self, x: &Handle, order: &[usize], name: &str) -> Result<Handle> {
        let op = Op::Permute {
            axes: order.to_vec(),
        };
        let dims = infer(&op, &[Form::Shaped(&x.dims)])?;
        let axes = integers(order.iter().map(|&axis| axis as i64));
        let arguments = vec![("self", tensor(&x.name)), ("dims", axes)];
        Ok(self.call("aten.permute.default", arguments, name, dims, x.outer))
    }
}

/// What a `Gemm` adds.
enum Bias {
    None,
    Of(Handle),
}

impl Bias {
    fn is_none_or_fits(&self, outputs: Dim) -> bool {
        match self {
            Self::None => true,
            Self::Of(bias) => bias.dims == [outputs],
        }
    }
}
