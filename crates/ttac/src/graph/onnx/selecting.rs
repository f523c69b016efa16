//! Operations that take parts of values, join them or surround them.

use super::super::dims::describe;
use super::super::ir::Dim;
use super::super::op::Op;
use super::super::program::Argument;
use super::super::shape::{Form, infer};
use super::attributes::axis_of;
use super::dispatch::result;
use super::fold::cuts;
use super::known::Known;
use super::message::Node;
use super::problem::{Problem, Result};
use super::shaping::dim_of;
use super::translate::{Handle, Translator, Value, integer, tensor};

/// The longest edge of an image that a resize may make.
const LARGEST_EDGE: usize = 1 << 24;

impl Translator<'_> {
    pub(super) fn concat(&mut self, node: &Node<'_>) -> Result<Handle> {
        let mut parts = Vec::new();
        for index in 0..node.inputs.len() {
            parts.push(self.tensor(node, index)?);
        }
        let head = parts.first().ok_or("it joins nothing")?;
        let axis = axis_of(node.integer("axis", 0), head.dims.len())?;
        let name = result(node)?;
        // With one image in the file, a class token that is joined needs no expansion there, but does here.
        let images = |part: &Handle| part.dims.first().is_some_and(|dim| dim.batch);
        if self.batch == Some(1) && axis > 0 && parts.iter().any(images) {
            for part in &mut parts {
                if part.dims.first() == Some(&Dim::fixed(1)) {
                    let mut dims = part.dims.clone();
                    dims[0] = Dim::per_image(1);
                    let repeated = self.fresh(&format!("{name}.repeated"));
                    *part = self.expanded(part, dims, &repeated)?;
                }
            }
        }
        let forms: Vec<_> = parts.iter().map(|part| Form::Shaped(&part.dims)).collect();
        let dims = infer(&Op::Concat { axis }, &forms)?;
        let outer = parts.iter().map(|part| part.outer).max().unwrap_or(1);
        let names = parts.into_iter().map(|part| Some(part.name)).collect();
        let arguments = vec![
            ("tensors", Argument::Tensors(names)),
            ("dim", integer(axis as i64)),
        ];
        Ok(self.call("aten.cat.default", arguments, name, dims, outer))
    }

    pub(super) fn slice(&mut self, node: &Node<'_>) -> Result<Handle> {
        let x = self.tensor(node, 0)?;
        let knowns = self.knowns(node)?;
        let knowns: Vec<_> = knowns.iter().map(Option::as_ref).collect();
        let mut cuts = cuts(node, &x.fixed_sizes(), &knowns)?;
        cuts.retain(|cut| cut.step != 1 || x.dims[cut.axis] != Dim::fixed(cut.count));
        let mut taken = x;
        for (number, cut) in cuts.iter().enumerate() {
            let step = usize::try_from(cut.step).map_err(|_| "it steps backwards")?;
            let last = cut.count.checked_sub(1).ok_or("it takes nothing")?;
            let name = if number + 1 == cuts.len() {
                result(node)?.to_owned()
            } else {
                self.fresh(&format!("{}.slice", result(node)?))
            };
            let end = cut.start + last * step + 1;
            taken = self.sliced(&taken, cut.axis, [cut.start, end, step], &name)?;
        }
        Ok(taken)
    }

    fn sliced(
        &mut self,
        x: &Handle,
        axis: usize,
        [start, end, step]: [usize; 3],
        name: &str,
    ) -> Result<Handle> {
        let op = Op::Slice {
            axis,
            start,
            end,
            step,
        };
        let dims = infer(&op, &[Form::Shaped(&x.dims)])?;
        let arguments = vec![
            ("self", tensor(&x.name)),
            ("dim", integer(axis as i64)),
            ("start", integer(start as i64)),
            ("end", integer(end as i64)),
            ("step", integer(step as i64)),
        ];
        Ok(self.call("aten.slice.Tensor", arguments, name, dims, x.outer))
    }

    /// Cuts a value into parts along an axis: one slice for each.
    pub(super) fn split(&mut self, node: &Node<'_>) -> Result<()> {
        let x = self.tensor(node, 0)?;
        let axis = axis_of(node.integer("axis", 0), x.dims.len())?;
        let size = x.fixed_sizes()[axis].ok_or("it takes the images apart")?;
        let knowns = self.knowns(node)?;
        let knowns: Vec<_> = knowns.iter().map(Option::as_ref).collect();
        let given = super::fold::integers(node, "split", 1, &knowns)?;
        let lengths = part_lengths(given, size, node.outputs.len())?;
        let mut start = 0;
        for (length, name) in lengths.into_iter().zip(&node.outputs) {
            if !name.is_empty() {
                let part = self.sliced(&x, axis, [start, start + length, 1], name)?;
                self.bind(name, Value::Made(part))?;
            }
            start += length;
        }
        Ok(())
    }

    /// Takes known indices along an axis.
    pub(super) fn gather(&mut self, node: &Node<'_>) -> Result<Handle> {
        let x = self.tensor(node, 0)?;
        let axis = axis_of(node.integer("axis", 0), x.dims.len())?;
        let size = x.fixed_sizes()[axis].ok_or("it takes some of the images")?;
        let indices = self.known(node, 1)?.ok_or("it has no indices")?;
        let list = indices.plain()?;
        let list = list.iter().map(|&index| axis_of(index, size));
        let list = list
            .collect::<Result<Vec<_>, _>>()
            .map_err(|_| format!("an index is outside of {size}"))?;
        let name = result(node)?;
        if let ([index], []) = (list.as_slice(), indices.shape.as_slice()) {
            let mut dims = x.dims.clone();
            dims.remove(axis);
            let arguments = vec![
                ("self", tensor(&x.name)),
                ("dim", integer(axis as i64)),
                ("index", integer(*index as i64)),
            ];
            return Ok(self.call("aten.select.int", arguments, name, dims, x.outer));
        }
        let list: Vec<i64> = list.into_iter().map(|index| index as i64).collect();
        let constant = self.fresh(&format!("{name}.indices"));
        let constant = self.constant(&constant, &Known::integers(&list))?;
        let mut dims = x.dims.clone();
        dims[axis] = Dim::fixed(list.len());
        let flat = indices.shape.len() == 1;
        let made = if flat {
            name.to_owned()
        } else {
            self.fresh(&format!("{name}.flat"))
        };
        let mut places = vec![None; axis];
        places.push(Some(constant.name));
        let arguments = vec![
            ("self", tensor(&x.name)),
            ("indices", Argument::Tensors(places)),
        ];
        let taken = self.call("aten.index.Tensor", arguments, &made, dims, x.outer);
        if flat {
            return Ok(taken);
        }
        let mut dims = x.dims;
        dims.splice(axis..=axis, indices.shape.iter().copied().map(Dim::fixed));
        self.reshaped(&taken, dims, name)
    }

    pub(super) fn pad(&mut self, node: &Node<'_>) -> Result<Handle> {
        let x = self.tensor(node, 0)?;
        let mode = node.text("mode", "constant");
        if mode != "constant" {
            return Err(Problem::with_hint(
                format!("padding of mode `{mode}` is not supported"),
                "pad with a constant",
            ));
        }
        let pads = self.known(node, 1)?.ok_or("it has no pads")?.plain()?;
        let value = match self.known(node, 2)? {
            Some(known) => known.single().ok_or("it pads with several numbers")?,
            None => 0.0,
        };
        let rank = x.dims.len();
        let axes = match self.known(node, 3)? {
            Some(axes) => axes
                .plain()?
                .iter()
                .map(|&axis| axis_of(axis, rank))
                .collect::<Result<Vec<_>, _>>()?,
            None => (0..rank).collect(),
        };
        if pads.len() != 2 * axes.len() {
            return Err(format!("{} pads for {} axes", pads.len(), axes.len()).into());
        }
        let mut padding = vec![[0usize; 2]; rank];
        for (index, &axis) in axes.iter().enumerate() {
            for (side, at) in [index, index + axes.len()].into_iter().enumerate() {
                padding[axis][side] = usize::try_from(pads[at])
                    .map_err(|_| "negative padding, which cuts, is not supported")?;
            }
        }
        let flat = padding.iter().rev().flatten();
        let flat: Vec<i64> = flat.map(|&size| size as i64).collect();
        let value = super::attributes::widen(value);
        let op = Op::Pad { padding, value };
        let dims = infer(&op, &[Form::Shaped(&x.dims)])?;
        let arguments = vec![
            ("self", tensor(&x.name)),
            ("pad", super::translate::integers(flat)),
            ("value", Argument::Float(value)),
        ];
        let name = result(node)?;
        let target = "aten.constant_pad_nd.default";
        Ok(self.call(target, arguments, name, dims, x.outer))
    }

    /// Enlarges or shrinks images by the nearest pixel.
    pub(super) fn resize(&mut self, node: &Node<'_>) -> Result<Handle> {
        let x = self.tensor(node, 0)?;
        let [batch, channels, height, width] = x.dims[..] else {
            return Err(format!("it reads {}", describe(&x.dims)).into());
        };
        let from = [height.size, width.size];
        let hint = "only resizing by the nearest pixel is supported";
        let mode = node.text("mode", "nearest");
        if mode != "nearest" {
            return Err(Problem::with_hint(format!("it resizes by `{mode}`"), hint));
        }
        let sizes = self.known(node, 3)?.filter(|sizes| sizes.numbers.len() > 0);
        let scales = if node.op == "Upsample" { 1 } else { 2 };
        let to = if let Some(sizes) = sizes {
            let &[_, _, height, width] = sizes.whole()? else {
                return Err("its sizes are not four".into());
            };
            [dim_of(height)?.size, dim_of(width)?.size]
        } else {
            let scales = self
                .known(node, scales)?
                .ok_or("it has no scales")?
                .real()?;
            let &[_, _, down, across] = scales.as_slice() else {
                return Err("its scales are not four".into());
            };
            let scaled = |size: usize, scale: f32| (size as f32 * scale).floor() as usize;
            [scaled(from[0], down), scaled(from[1], across)]
        };
        if to.iter().any(|&size| size == 0 || size > LARGEST_EDGE) {
            return Err(format!("it makes images of {to:?} pixels").into());
        }
        let whole = (0..2).all(|axis| from[axis] > 0 && to[axis].is_multiple_of(from[axis]));
        let coordinates = node.text("coordinate_transformation_mode", "half_pixel");
        let rounding = node.text("nearest_mode", "round_prefer_floor");
        // Whole multiples take the same pixels by all rules that look at the centres of pixels.
        let by_centre = whole
            && matches!(coordinates.as_str(), "half_pixel" | "pytorch_half_pixel")
            && rounding.starts_with("round");
        if !(by_centre || coordinates == "asymmetric" && rounding == "floor") {
            let problem = format!("it takes pixels by `{coordinates}` and `{rounding}`");
            return Err(Problem::with_hint(problem, hint));
        }
        let op = Op::Resize { size: to };
        infer(&op, &[Form::Shaped(&x.dims)])?;
        let dims = vec![batch, channels, Dim::fixed(to[0]), Dim::fixed(to[1])];
        let arguments = vec![
            ("input", tensor(&x.name)),
            ("output_size", super::translate::numbers(&to)),
        ];
        let name = result(node)?;
        Ok(self.call(
            "aten.upsample_nearest2d.vec",
            arguments,
            name,
            dims,
            x.outer,
        ))
    }
}

/// Returns the lengths of the parts of a `Split`: those given, or equal ones of which the last may be shorter.
fn part_lengths(given: Option<Vec<i64>>, size: usize, parts: usize) -> Result<Vec<usize>> {
    let lengths: Vec<usize> = if let Some(given) = given {
        let lengths = given.iter().map(|&length| usize::try_from(length));
        let lengths = lengths.collect::<Result<_, _>>();
        lengths.map_err(|_| "a part of negative length")?
    } else {
        let length = size.div_ceil(parts.max(1));
        let rest = |part: usize| size.saturating_sub(part * length);
        (0..parts).map(|part| length.min(rest(part))).collect()
    };
    let total = lengths
        .iter()
        .try_fold(0usize, |sum, &length| sum.checked_add(length));
    if lengths.len() != parts || total != Some(size) {
        return Err(format!("{lengths:?} are no parts of {size}").into());
    }
    Ok(lengths)
}
