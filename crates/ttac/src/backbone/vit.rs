//! Vision transformers (Dosovitskiy et al., 2021) as timm writes them: an image becomes a row of patches and a class token, and
//! blocks of attention and two-layer perceptrons pass over them. The feature is the class token after the last norm.
//!
//! Keys `cls_token`, `pos_embed`, `patch_embed.proj`, `blocks.{j}.{norm1,attn.qkv,attn.proj,norm2,mlp.fc1,mlp.fc2}`, `norm`, `head`.
//!
//! There is no batch norm. The norms are layer norms, to which [`NormMode`] makes no difference; their scales and shifts are the
//! [affine](super::Adaptable::Affine) parameters.

use std::collections::BTreeMap;

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};
use ttac_kernels::{AttentionOptions, Before, ConvOptions, attention, conv2d, linear};

use super::family::{Entry, Family, InputForm, OtherSizes, Published};
use super::layers::Linear;
use super::{Backbone, LayerNorm, NormMode};

pub(super) const ENTRY: Entry<VitConfig> = Entry {
    family: "vit",
    about: "vision transformer with a class token",
    weights: "timm",
    published: &[
        Published::new("vit-tiny-4", "5.4 M", |n| published(TINY, 32, 4, n)),
        Published::new("vit-small-4", "21 M", |n| published(SMALL, 32, 4, n)),
        Published::new("vit-tiny-16", "5.7 M", |n| published(TINY, 224, 16, n)),
        Published::new("vit-small-16", "22 M", |n| published(SMALL, 224, 16, n)),
        Published::new("vit-base-16", "87 M", |n| published(BASE, 224, 16, n)),
    ],
};

/// Width and number of heads of the published transformers, which all have twelve blocks.
const TINY: [usize; 2] = [192, 3];
const SMALL: [usize; 2] = [384, 6];
const BASE: [usize; 2] = [768, 12];

fn published(
    [width, heads]: [usize; 2],
    image_size: usize,
    patch: usize,
    num_classes: usize,
) -> VitConfig {
    VitConfig {
        image_size,
        patch,
        width,
        depth: 12,
        heads,
        mlp: 4 * width,
        num_classes,
    }
}

/// Epsilon of all norms, as in timm.
const EPSILON: f64 = 1e-6;

/// Configures a [`VisionTransformer`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VitConfig {
    /// Side of the square images in pixels. Positions are learned, so no other size fits.
    pub image_size: usize,
    /// Side of a patch in pixels; it divides the image's.
    pub patch: usize,
    /// Number of values of a token.
    pub width: usize,
    /// Number of blocks.
    pub depth: usize,
    /// Number of heads of the attention; it divides the width.
    pub heads: usize,
    /// Number of values inside the perceptrons, four times the width in the published networks.
    pub mlp: usize,
    /// Number of classes the network tells apart.
    pub num_classes: usize,
}

impl VitConfig {
    /// Builds the network with all weights zero and fresh norms.
    pub(super) fn init(&self, device: &Device) -> VisionTransformer {
        let width = self.width;
        let token = |count: usize| Param::from_tensor(Tensor::zeros([1, count, width], device));
        VisionTransformer {
            cls_token: token(1),
            pos_embed: token(self.tokens()),
            patch_embed: PatchEmbed {
                proj: Patches {
                    weight: Param::from_tensor(Tensor::zeros(
                        [width, 3, self.patch, self.patch],
                        device,
                    )),
                    bias: Param::from_tensor(Tensor::zeros([width], device)),
                },
            },
            blocks: (0..self.depth)
                .map(|_| Block::new(width, self.heads, self.mlp, device))
                .collect(),
            norm: norm(width, device),
            head: Linear::new(width, self.num_classes, device),
        }
    }
}

impl Family for VitConfig {
    fn input(&self) -> InputForm {
        InputForm::Images {
            size: [self.image_size; 2],
            fixed: true,
        }
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut divides = |part: (&str, usize), whole: (&str, usize)| {
            if part.1 > 0 && !whole.1.is_multiple_of(part.1) {
                problems.push(format!(
                    "`{}` must divide `{}`, found {} and {}",
                    part.0, whole.0, part.1, whole.1
                ));
            }
        };
        divides(("patch", self.patch), ("image_size", self.image_size));
        divides(("heads", self.heads), ("width", self.width));
        problems
    }

    fn other_sizes(&self, found: &BTreeMap<String, Vec<usize>>) -> OtherSizes {
        let length = |key: &str, rank: usize, axis: usize| {
            let shape = found.get(key).filter(|shape| shape.len() == rank)?;
            Some(shape[axis])
        };
        let width = length("cls_token", 3, 2);
        let patch = length("patch_embed.proj.weight", 4, 2);
        let mlp = length("blocks.0.mlp.fc1.weight", 2, 0);
        let block_of = |key: &String| -> Option<usize> {
            let rest = key.strip_prefix("blocks.")?;
            rest.split_once('.')?.0.parse().ok()
        };
        let depth = found.keys().filter_map(block_of).max().map(|last| last + 1);
        // Tokens are the patches of a square and the class token.
        let image_size = length("pos_embed", 3, 1).and_then(|tokens| {
            let side = tokens.saturating_sub(1).isqrt();
            (side * side + 1 == tokens).then(|| side * patch.unwrap_or(self.patch))
        });
        let fields = [
            ("width", width, self.width),
            ("patch", patch, self.patch),
            ("mlp", mlp, self.mlp),
            ("depth", depth, self.depth),
            ("image_size", image_size, self.image_size),
        ];
        let different = |(field, found, own): (_, Option<usize>, usize)| {
            let value = found.filter(|&value| value != own)?;
            Some((field, value))
        };
        let fields: Vec<(&str, usize)> = fields.into_iter().filter_map(different).collect();
        let new_width = fields.iter().any(|(field, _)| *field == "width");
        OtherSizes {
            fields,
            untold: new_width.then_some("heads").into_iter().collect(),
        }
    }
}

impl VitConfig {
    /// Returns the number of tokens of an image: its patches and the class token.
    pub fn tokens(&self) -> usize {
        (self.image_size / self.patch).pow(2) + 1
    }
}

fn norm(width: usize, device: &Device) -> LayerNorm {
    LayerNorm {
        epsilon: EPSILON,
        ..LayerNorm::new(width, device)
    }
}

/// A vision transformer, as the [module](self) describes it.
#[derive(Module, Debug)]
pub struct VisionTransformer {
    /// `[1, 1, width]`.
    cls_token: Param<Tensor<3>>,
    /// `[1, tokens, width]`.
    pos_embed: Param<Tensor<3>>,
    patch_embed: PatchEmbed,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}

#[derive(Module, Debug)]
struct PatchEmbed {
    proj: Patches,
}

/// A convolution that meets every pixel once, with a bias.
#[derive(Module, Debug)]
struct Patches {
    /// `[width, 3, patch, patch]`.
    weight: Param<Tensor<4>>,
    /// `[width]`.
    bias: Param<Tensor<1>>,
}

impl VisionTransformer {
    /// Maps `[batch, height, width, 3]` to `[batch * tokens, width]`, the class token first in each image.
    fn embed(&self, images: Tensor<4>) -> Tensor<2> {
        let [batch, height, columns, _] = images.dims();
        let proj = &self.patch_embed.proj;
        let shape = proj.weight.lazy_shape();
        let (width, patch) = (shape[0], shape[2]);
        let tokens = self.pos_embed.lazy_shape()[1];
        let side = (tokens - 1).isqrt() * patch;
        assert!(
            height == side && columns == side,
            "images of {height} x {columns} pixels do not fit a transformer with positions for {side} x {side}"
        );
        let options = ConvOptions::square(patch, 0);
        let patches: Tensor<3> =
            conv2d(images, proj.weight.val(), options).reshape([batch, tokens - 1, width]);
        // The bias is the same for all patches: it joins the positions, which are few.
        let positions = self.pos_embed.val();
        let first = self.cls_token.val() + positions.clone().narrow(1, 0, 1);
        let rest = positions.narrow(1, 1, tokens - 1) + proj.bias.val().reshape([1, 1, width]);
        let first = first.expand([batch, 1, width]);
        Tensor::cat(vec![first, patches + rest], 1).reshape([batch * tokens, width])
    }
}

impl Backbone for VisionTransformer {
    fn features(&self, images: Tensor<4>, _: NormMode) -> Tensor<2> {
        let [batch, ..] = images.dims();
        let tokens = self.pos_embed.lazy_shape()[1];
        let mut x = self.embed(images);
        for (j, block) in self.blocks.iter().enumerate() {
            // After the last block only the class token is used, so the last attention has no other query.
            let last = j + 1 == self.blocks.len();
            x = block.forward(x, batch, if last { 1 } else { tokens });
        }
        self.norm.forward(x)
    }

    fn classifier(&self) -> Option<&Linear> {
        Some(&self.head)
    }
}

/// A block that computes `y = x + attn(norm1(x))`, then `y + mlp(norm2(y))`.
#[derive(Module, Debug)]
pub struct Block {
    norm1: LayerNorm,
    attn: Attention,
    norm2: LayerNorm,
    mlp: Mlp,
}

#[derive(Module, Debug)]
struct Attention {
    qkv: Linear,
    proj: Linear,
    heads: usize,
}

/// A perceptron that computes `fc2(gelu(fc1(x)))`.
#[derive(Module, Debug)]
struct Mlp {
    fc1: Linear,
    fc2: Linear,
}

impl Block {
    /// Builds a block with zero weights; `mlp` is the width inside its perceptron.
    pub fn new(width: usize, heads: usize, mlp: usize, device: &Device) -> Self {
        Self {
            norm1: norm(width, device),
            attn: Attention {
                qkv: Linear::new(width, 3 * width, device),
                proj: Linear::new(width, width, device),
                heads,
            },
            norm2: norm(width, device),
            mlp: Mlp {
                fc1: Linear::new(width, mlp, device),
                fc2: Linear::new(mlp, width, device),
            },
        }
    }

    /// Maps `[batch * tokens, width]` to `[batch * queries, width]`: the first `queries` tokens of each image.
    pub fn forward(&self, x: Tensor<2>, batch: usize, queries: usize) -> Tensor<2> {
        let [rows, width] = x.dims();
        let options = AttentionOptions {
            batch,
            heads: self.attn.heads,
            queries,
        };
        let apply = |layer: &Linear, x: Tensor<2>, before: Before, residual: Option<Tensor<2>>| {
            let bias = Some(layer.bias.val());
            linear(x, layer.weight.val(), bias, before, residual)
        };
        let qkv = apply(
            &self.attn.qkv,
            self.norm1.forward(x.clone()),
            Before::Nothing,
            None,
        );
        let mixed = attention(qkv, options);
        let kept = if batch * queries == rows {
            x
        } else {
            let images: Tensor<3> = x.reshape([batch, rows / batch, width]);
            images
                .narrow(1, 0, queries)
                .reshape([batch * queries, width])
        };
        let x = apply(&self.attn.proj, mixed, Before::Nothing, Some(kept));
        let inside = apply(
            &self.mlp.fc1,
            self.norm2.forward(x.clone()),
            Before::Nothing,
            None,
        );
        apply(&self.mlp.fc2, inside, Before::Gelu, Some(x))
    }
}
