//! Vision transformers (Dosovitskiy et al., 2021) as timm writes them: an image becomes a row of patches and a class token, and
//! blocks of attention and two-layer perceptrons pass over them. The feature is the class token after the last norm.
//!
//! Keys `cls_token`, `pos_embed`, `patch_embed.proj`, `blocks.{j}.{norm1,attn.qkv,attn.proj,norm2,mlp.fc1,mlp.fc2}`, `norm`, `head`.
//!
//! There is no batch norm: the norms are layer norms, which [`NormMode`] does not concern, and whose scales and shifts are the
//! [affine](super::Adaptable::Affine) parameters.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};
use ttac_kernels::{AttentionOptions, Before, ConvOptions, attention, conv2d, linear};

use super::layers::Linear;
use super::{Backbone, LayerNorm, NormMode};

/// Epsilon of all norms, as in timm.
const EPSILON: f64 = 1e-6;

/// Configuration of a [`VisionTransformer`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VitConfig {
    /// Side of the square images. Positions are learned, so no other size fits.
    pub image_size: usize,
    /// Side of a patch; divides the image's.
    pub patch: usize,
    /// Values of a token.
    pub width: usize,
    /// Blocks.
    pub depth: usize,
    /// Heads of the attention; divide the width.
    pub heads: usize,
    /// Width inside the perceptrons, four times the tokens' in the published networks.
    pub mlp: usize,
    /// Number of classes.
    pub num_classes: usize,
}

impl VitConfig {
    pub(super) fn problems(&self) -> Vec<String> {
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

    /// Tokens of an image: its patches and the class token.
    pub fn tokens(&self) -> usize {
        (self.image_size / self.patch).pow(2) + 1
    }

    /// The network with all weights zero and fresh norms.
    pub fn init(&self, device: &Device) -> VisionTransformer {
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

fn norm(width: usize, device: &Device) -> LayerNorm {
    LayerNorm {
        epsilon: EPSILON,
        ..LayerNorm::new(width, device)
    }
}

/// See the [module](self).
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
    /// `[batch, height, width, 3]` to `[batch * tokens, width]`, the class token first in each image.
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
        let options = ConvOptions {
            stride: patch,
            padding: 0,
        };
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
            // Of the last block only the class token is looked at: the others are asked but do not ask.
            let last = j + 1 == self.blocks.len();
            x = block.forward(x, batch, if last { 1 } else { tokens });
        }
        self.norm.forward(x)
    }

    fn logits(&self, features: Tensor<2>) -> Tensor<2> {
        self.head.forward(features)
    }

    fn head_weights(&self) -> Tensor<2> {
        self.head.weight.val()
    }

    fn num_features(&self) -> usize {
        self.head.weight.lazy_shape()[1]
    }

    fn num_classes(&self) -> usize {
        self.head.weight.lazy_shape()[0]
    }

    fn classifier_key(&self) -> &'static str {
        "head"
    }
}

/// `x = x + attn(norm1(x)); x + mlp(norm2(x))`.
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

/// `fc2(gelu(fc1(x)))`.
#[derive(Module, Debug)]
struct Mlp {
    fc1: Linear,
    fc2: Linear,
}

impl Block {
    /// A block with zero weights.
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

    /// `[batch * tokens, width]` to `[batch * queries, width]`: the first `queries` tokens of each image.
    pub fn forward(&self, x: Tensor<2>, batch: usize, queries: usize) -> Tensor<2> {
        let [rows, width] = x.dims();
        let options = AttentionOptions {
            batch,
            heads: self.attn.heads,
            queries,
        };
        let apply = |layer: &Linear, x: Tensor<2>, before: Before, residual: Option<Tensor<2>>| {
            linear(x, layer.weight.val(), layer.bias.val(), before, residual)
        };
        let qkv = apply(
            &self.attn.qkv,
            self.norm1.forward(x.clone()),
            Before::Nothing,
            None,
        );
        let mixed = attention(qkv, options);
        let asking = if batch * queries == rows {
            x
        } else {
            let images: Tensor<3> = x.reshape([batch, rows / batch, width]);
            images
                .narrow(1, 0, queries)
                .reshape([batch * queries, width])
        };
        let x = apply(&self.attn.proj, mixed, Before::Nothing, Some(asking));
        let inside = apply(
            &self.mlp.fc1,
            self.norm2.forward(x.clone()),
            Before::Nothing,
            None,
        );
        apply(&self.mlp.fc2, inside, Before::Gelu, Some(x))
    }
}
