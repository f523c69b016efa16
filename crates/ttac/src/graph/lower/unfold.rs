//! Windows as columns, and columns as windows.

use super::arguments::{Outcome, Scope};
use super::build::{Meaning, Refusal};
use super::fold::{Array, Kind, bounded};
use crate::graph::op::Op;

/// The windows along one axis: tap `k` of window `o` reads place `o * stride + k * dilation` of the padded edge.
struct Windows {
    taps: usize,
    places: usize,
    stride: usize,
    dilation: usize,
    padding: usize,
}

impl Windows {
    fn read(s: &Scope<'_, '_>, edge: [usize; 2]) -> Result<[Self; 2], Refusal> {
        let kernel = s.pair("kernel_size", [1, 1])?;
        let stride = s.pair("stride", [1, 1])?;
        let dilation = s.pair("dilation", [1, 1])?;
        let padding = s.pair("padding", [0, 0])?;
        let limit = 1 << 16;
        let all = [kernel, stride, dilation, padding, edge].concat();
        if all.iter().any(|&size| size > limit) || kernel.contains(&0) || stride.contains(&0) {
            return Err("its windows have no proper size".into());
        }
        let one = |axis: usize| {
            let span = (kernel[axis] - 1) * dilation[axis] + 1;
            let room = (edge[axis] + 2 * padding[axis]).checked_sub(span);
            let room = room.ok_or("its windows do not fit the images")?;
            Ok(Self {
                taps: kernel[axis],
                places: room / stride[axis] + 1,
                stride: stride[axis],
                dilation: dilation[axis],
                padding: padding[axis],
            })
        };
        let both: Result<Vec<Self>, Refusal> = (0..2).map(one).collect();
        <[Self; 2]>::try_from(both?).map_err(|_| "its windows have two axes".into())
    }

    /// Returns the place in the padded edge of each tap of each window, window by window within a tap.
    fn list(&self) -> Vec<usize> {
        let taps = 0..self.taps;
        taps.flat_map(|tap| {
            (0..self.places).map(move |place| place * self.stride + tap * self.dilation)
        })
        .collect()
    }

    /// Returns the matrix that adds each tap of each window to its place, `[edge, taps * places]`.
    fn matrix(&self, edge: usize) -> Result<Array, Refusal> {
        let list = self.list();
        let mut values = vec![0.0; bounded(&[edge, list.len()])?];
        for (column, place) in list.iter().enumerate() {
            if let Some(row) = place.checked_sub(self.padding).filter(|&row| row < edge) {
                values[row * list.len() + column] = 1.0;
            }
        }
        Ok(Array::new(Kind::F32, vec![edge, list.len()], values))
    }
}

/// Lowers `im2col` (`unfold`): every window becomes a column of `channels * taps` numbers.
pub(super) fn columns(s: &mut Scope<'_, '_>) -> Outcome {
    let mut x = s.subject()?;
    let [batch, channels, height, width] = s.sizes(&x)?[..] else {
        return Err("it takes windows of something that is no images".into());
    };
    let [down, across] = Windows::read(s, [height, width])?;
    if down.padding + across.padding > 0 {
        let padding = vec![[0; 2], [0; 2], [down.padding; 2], [across.padding; 2]];
        x = s.node(
            Op::Pad {
                padding,
                value: 0.0,
            },
            &[x],
        )?;
    }
    let x = s.gather(&x, 2, &down.list())?;
    let x = s.gather(&x, 3, &across.list())?;
    let cut = [
        batch,
        channels,
        down.taps,
        down.places,
        across.taps,
        across.places,
    ];
    let x = s.reshape(&x, &cut)?;
    let x = s.permute(&x, vec![0, 1, 2, 4, 3, 5])?;
    let sizes = [
        batch,
        channels * down.taps * across.taps,
        down.places * across.places,
    ];
    Ok(vec![s.reshape(&x, &sizes)?])
}

/// Lowers `col2im` (`fold`): the columns of windows are added up where windows overlap, by a product from either side.
pub(super) fn images(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.subject()?;
    let edge = s.pair("output_size", [0, 0])?;
    let [down, across] = Windows::read(s, edge)?;
    let [batch, rows, _] = s.sizes(&x)?[..] else {
        return Err("it adds up something that is no columns".into());
    };
    let channels = rows / (down.taps * across.taps);
    let cut = [
        batch,
        channels,
        down.taps,
        across.taps,
        down.places,
        across.places,
    ];
    let x = s.reshape(&x, &cut)?;
    let x = s.permute(&x, vec![0, 1, 2, 4, 3, 5])?;
    let [height, width] = [down.taps * down.places, across.taps * across.places];
    let x = s.reshape(&x, &[batch, channels, height, width])?;
    let left = Meaning::Known(down.matrix(edge[0])?);
    let right = Meaning::Known(across.matrix(edge[1])?.permute(&[1, 0]));
    let x = s.node(Op::MatMul, &[left, x])?;
    Ok(vec![s.node(Op::MatMul, &[x, right])?])
}
