//! Operations that give elements another shape or order.

use super::super::dims::{broadcast, describe, elements};
use super::super::ir::Dim;
use super::super::op::Op;
use super::super::shape::{Form, infer};
use super::attributes::axis_of;
use super::dispatch::result;
use super::fold::{fill_value, order, squeezed, unsqueezed};
use super::known::Whole;
use super::message::Node;
use super::problem::{Problem, Result};
use super::translate::{Handle, Translator, tensor};

/// The largest size that is followed.
const MOST: i64 = 1 << 40;

impl Handle {
    /// Returns how many blocks of elements lie before the images, in row-major order.
    fn blocks(&self) -> Option<usize> {
        let axis = self.dims.iter().position(|dim| dim.batch)?;
        let before = elements(&self.dims[..axis])?;
        before.checked_mul(self.outer)
    }

    /// Returns the sizes, and nothing for those that depend on the number of images.
    pub(super) fn fixed_sizes(&self) -> Vec<Option<usize>> {
        let sizes = self.dims.iter();
        sizes.map(|dim| (!dim.batch).then_some(dim.size)).collect()
    }
}

/// Returns a size that is written out.
pub(super) fn dim_of(size: Whole) -> Result<Dim> {
    match (size.fixed, size.per_image) {
        (fixed @ 0..=MOST, 0) => Ok(Dim::fixed(fixed as usize)),
        (0, factor @ 1..=MOST) => Ok(Dim::per_image(factor as usize)),
        _ => Err(super::known::depends_on_the_batch()),
    }
}

impl Translator<'_> {
    /// Emits a reshape to a shape whose sizes are all known.
    pub(super) fn reshaped(&mut self, x: &Handle, dims: Vec<Dim>, name: &str) -> Result<Handle> {
        let op = Op::Reshape { shape: dims };
        let dims = infer(&op, &[Form::Shaped(&x.dims)])?;
        let axis = dims.iter().position(|dim| dim.batch);
        let outer = match (x.blocks(), axis) {
            (Some(blocks), Some(axis)) => {
                let before = elements(&dims[..axis]).unwrap_or(1).max(1);
                (blocks / before).max(1)
            }
            _ => 1,
        };
        let shape = self.sizes(&dims);
        let arguments = vec![("self", tensor(&x.name)), ("shape", shape)];
        Ok(self.call("aten.reshape.default", arguments, name, dims, outer))
    }

    pub(super) fn reshape(&mut self, node: &Node<'_>) -> Result<Handle> {
        let x = self.tensor(node, 0)?;
        let target = self.known(node, 1)?.ok_or("it has no shape")?;
        let zero_is_zero = node.integer("allowzero", 0) == 1;
        let mut dims = Vec::new();
        let mut open = None;
        for (axis, &size) in target.whole()?.iter().enumerate() {
            dims.push(match size.number() {
                Some(-1) if open.is_none() => {
                    open = Some(axis);
                    Dim::fixed(1)
                }
                Some(0) if !zero_is_zero => *x
                    .dims
                    .get(axis)
                    .ok_or("it copies an axis that is not there")?,
                _ => dim_of(size)?,
            });
        }
        let dims = self.resolved(&x, dims, open)?;
        self.reshaped(&x, dims, result(node)?)
    }

    /// Finds the size that is left open, and where the images are in a shape that was written for a fixed number of them.
    fn resolved(&self, x: &Handle, mut dims: Vec<Dim>, open: Option<usize>) -> Result<Vec<Dim>> {
        let wrong = |dims: &[Dim]| {
            let (from, to) = (describe(&x.dims), describe(dims));
            Problem::with_hint(
                format!("{from} cannot become {to}"),
                "export the network with a dynamic batch, or as `.pt2`",
            )
        };
        let (from, to) = (elements(&x.dims), elements(&dims));
        let (Some(from), Some(to)) = (from, to) else {
            return Err(wrong(&dims));
        };
        let images = x.dims.iter().any(|dim| dim.batch);
        let placed = dims.iter().any(|dim| dim.batch);
        if !images || placed {
            if let Some(axis) = open {
                if to == 0 || !from.is_multiple_of(to) {
                    return Err(wrong(&dims));
                }
                dims[axis] = Dim::fixed(from / to);
            }
            return Ok(dims);
        }
        let Some(batch) = self.batch else {
            let axis = open.filter(|_| to > 0 && from.is_multiple_of(to));
            let axis = axis.ok_or_else(|| wrong(&dims))?;
            dims[axis] = Dim::per_image(from / to);
            return Ok(dims);
        };
        if let Some(axis) = open {
            let total = from.saturating_mul(batch);
            if to == 0 || !total.is_multiple_of(to) {
                return Err(wrong(&dims));
            }
            dims[axis] = Dim::fixed(total / to);
        }
        let blocks = x.blocks().ok_or_else(|| wrong(&dims))?;
        let axis = place(&dims, blocks, batch).ok_or_else(|| wrong(&dims))?;
        dims[axis] = Dim::per_image(dims[axis].size / batch);
        Ok(dims)
    }

    pub(super) fn flatten(&mut self, node: &Node<'_>) -> Result<Handle> {
        let x = self.tensor(node, 0)?;
        let rank = x.dims.len();
        let axis = match node.integer("axis", 1) {
            axis if axis == rank as i64 => rank,
            axis => axis_of(axis, rank)?,
        };
        let merged = |dims: &[Dim]| {
            let size = elements(dims).ok_or_else(|| format!("{} is too large", describe(dims)))?;
            Ok::<_, Problem>(Dim {
                size,
                batch: dims.iter().any(|dim| dim.batch),
            })
        };
        let dims = vec![merged(&x.dims[..axis])?, merged(&x.dims[axis..])?];
        self.reshaped(&x, dims, result(node)?)
    }

    pub(super) fn squeeze(&mut self, node: &Node<'_>) -> Result<Handle> {
        let x = self.tensor(node, 0)?;
        let knowns = self.knowns(node)?;
        let knowns: Vec<_> = knowns.iter().map(Option::as_ref).collect();
        let ones: Vec<bool> = x.dims.iter().map(|&dim| dim == Dim::fixed(1)).collect();
        let axes = squeezed(node, &ones, &knowns)?;
        let kept = (0..x.dims.len()).filter(|axis| !axes.contains(axis));
        let dims = kept.map(|axis| x.dims[axis]).collect();
        self.reshaped(&x, dims, result(node)?)
    }

    pub(super) fn unsqueeze(&mut self, node: &Node<'_>) -> Result<Handle> {
        let x = self.tensor(node, 0)?;
        let knowns = self.knowns(node)?;
        let knowns: Vec<_> = knowns.iter().map(Option::as_ref).collect();
        let mut dims = x.dims.clone();
        for axis in unsqueezed(node, dims.len(), &knowns)? {
            dims.insert(axis.min(dims.len()), Dim::fixed(1));
        }
        self.reshaped(&x, dims, result(node)?)
    }

    pub(super) fn transpose(&mut self, node: &Node<'_>) -> Result<Handle> {
        let x = self.tensor(node, 0)?;
        let order = order(node, x.dims.len())?;
        let name = result(node)?;
        if order == [1, 0] && self.program.tensors.contains_key(&x.name) {
            self.turned.insert(name.to_owned(), x.clone());
        }
        self.permuted(&x, &order, name)
    }

    pub(super) fn expand(&mut self, node: &Node<'_>) -> Result<Handle> {
        let x = self.tensor(node, 0)?;
        let shape = self.known(node, 1)?.ok_or("it has no shape")?;
        let dims = shape.whole()?.iter().map(|&size| dim_of(size));
        let mut dims = dims.collect::<Result<Vec<_>>>()?;
        // A fixed number of images that was written out is any number.
        let own = dims.len() == x.dims.len() && x.dims.first() != Some(&Dim::fixed(1));
        if let (Some(batch), Some(first)) = (self.batch, dims.first_mut())
            && batch > 1
            && *first == Dim::fixed(batch)
            && !own
        {
            *first = Dim::per_image(1);
        }
        let dims = broadcast(&x.dims, &dims)?;
        self.expanded(&x, dims, result(node)?)
    }

    pub(super) fn expanded(&mut self, x: &Handle, dims: Vec<Dim>, name: &str) -> Result<Handle> {
        let op = Op::Expand { shape: dims };
        let dims = infer(&op, &[Form::Shaped(&x.dims)])?;
        let size = self.sizes(&dims);
        let arguments = vec![("self", tensor(&x.name)), ("size", size)];
        Ok(self.call("aten.expand.default", arguments, name, dims, x.outer))
    }

    /// A constant with a size that depends on the number of images: one number, repeated.
    pub(super) fn constant_of_shape(&mut self, node: &Node<'_>) -> Result<Handle> {
        let shape = self.known(node, 0)?.ok_or("it has no shape")?;
        let dims = shape.whole()?.iter().map(|&size| dim_of(size));
        let dims = dims.collect::<Result<Vec<_>>>()?;
        let name = result(node)?;
        let value = fill_value(node, self.folder)?.reshaped(vec![1; dims.len()])?;
        let constant = self.fresh(&format!("{name}.value"));
        let constant = self.constant(&constant, &value)?;
        self.expanded(&constant, dims, name)
    }

    /// Repeats a value along its axes. Where only axes of size 1 are repeated, that is an expansion.
    pub(super) fn tile(&mut self, node: &Node<'_>) -> Result<Handle> {
        let x = self.tensor(node, 0)?;
        let repeats = self.known(node, 1)?.ok_or("it has no repeats")?;
        let repeats = repeats.whole()?.iter().map(|&count| dim_of(count));
        let repeats = repeats.collect::<Result<Vec<_>>>()?;
        let name = result(node)?;
        if repeats.len() != x.dims.len() {
            return Err("its repeats are not as many as its axes".into());
        }
        let mut pairs = x.dims.iter().zip(&repeats);
        if pairs.all(|(&dim, &times)| times == Dim::fixed(1) || dim == Dim::fixed(1)) {
            let dims = broadcast(&x.dims, &repeats)?;
            return self.expanded(&x, dims, name);
        }
        let mut dims = x.dims.clone();
        for (dim, times) in dims.iter_mut().zip(&repeats) {
            if *times == Dim::fixed(1) {
                continue;
            }
            if dim.batch || times.batch {
                return Err("it repeats images".into());
            }
            dim.size = dim.size.saturating_mul(times.size);
        }
        elements(&dims).ok_or("its result is too large")?;
        let repeats = self.sizes(&repeats);
        let arguments = vec![("self", tensor(&x.name)), ("repeats", repeats)];
        Ok(self.call("aten.repeat.default", arguments, name, dims, x.outer))
    }

    /// Moves blocks of channels into space, in ONNX's order or PyTorch's.
    pub(super) fn depth_to_space(&mut self, node: &Node<'_>) -> Result<Handle> {
        let x = self.tensor(node, 0)?;
        let (block, [batch, channels, height, width]) = blocks(node, &x)?;
        let whole = block
            .checked_mul(block)
            .filter(|&b| channels.size.is_multiple_of(b));
        let rest = channels.size / whole.ok_or("its blocks do not divide the channels")?;
        let [b, c] = [block, rest].map(Dim::fixed);
        let (split, order) = if node.text("mode", "DCR") == "CRD" {
            (vec![batch, c, b, b, height, width], [0, 1, 4, 2, 5, 3])
        } else {
            (vec![batch, b, b, c, height, width], [0, 3, 4, 1, 5, 2])
        };
        let joined = [height.size, width.size].map(|size| Dim::fixed(size.saturating_mul(block)));
        self.rearranged(
            node,
            &x,
            split,
            &order,
            vec![batch, c, joined[0], joined[1]],
        )
    }

    /// Moves blocks of space into channels.
    pub(super) fn space_to_depth(&mut self, node: &Node<'_>) -> Result<Handle> {
        let x = self.tensor(node, 0)?;
        let (block, [batch, channels, height, width]) = blocks(node, &x)?;
        if !height.size.is_multiple_of(block) || !width.size.is_multiple_of(block) {
            return Err("its blocks do not divide the images".into());
        }
        let [rows, columns] = [height, width].map(|dim| Dim::fixed(dim.size / block));
        let b = Dim::fixed(block);
        let split = vec![batch, channels, rows, b, columns, b];
        let deep = channels.size.saturating_mul(block).saturating_mul(block);
        let joined = vec![batch, Dim::fixed(deep), rows, columns];
        self.rearranged(node, &x, split, &[0, 3, 5, 1, 2, 4], joined)
    }

    fn rearranged(
        &mut self,
        node: &Node<'_>,
        x: &Handle,
        split: Vec<Dim>,
        order: &[usize],
        joined: Vec<Dim>,
    ) -> Result<Handle> {
        let name = result(node)?;
        let (cut, moved) = (
            self.fresh(&format!("{name}.cut")),
            self.fresh(&format!("{name}.moved")),
        );
        let cut = self.reshaped(x, split, &cut)?;
        let moved = self.permuted(&cut, order, &moved)?;
        self.reshaped(&moved, joined, name)
    }
}

fn blocks(node: &Node<'_>, x: &Handle) -> Result<(usize, [Dim; 4])> {
    let block = usize::try_from(node.integer("blocksize", 0)).unwrap_or(0);
    match <[Dim; 4]>::try_from(x.dims.as_slice()) {
        Ok(dims) if (1..1 << 16).contains(&block) => Ok((block, dims)),
        _ => Err(format!("blocks of {block} of {}", describe(&x.dims)).into()),
    }
}

/// Finds the axis of the images in a shape for a fixed number of them, behind so many blocks of elements.
fn place(dims: &[Dim], blocks: usize, batch: usize) -> Option<usize> {
    let mut prefix = 1usize;
    let mut merged = None;
    for (axis, dim) in dims.iter().enumerate() {
        // An axis that is the batch and nothing else comes first; of one image the other rule cannot find it.
        if prefix == blocks && dim.size == batch {
            return Some(axis);
        }
        let end = prefix.checked_mul(dim.size)?;
        if (prefix..end).contains(&blocks) && dim.size.is_multiple_of(batch) {
            merged = merged.or(Some(axis));
        }
        prefix = end;
    }
    merged
}
