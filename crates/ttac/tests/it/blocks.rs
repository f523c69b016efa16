//! Residual blocks: output and input gradient with running and with batch statistics; transformer
//! blocks.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use ttac::backbone::resnet::{self, BlockKind};
use ttac::backbone::resnet26::{self, NormKind};
use ttac::backbone::{NormMode, resnet_cifar, vit, wide_resnet};

use crate::fixture::{Fixture, filled};

fn case<M: Module>(
    fixture: &mut Fixture,
    case: &str,
    block: M,
    forward: impl Fn(&M, Tensor<4>, NormMode) -> Tensor<4>,
) {
    let device = Device::flex().autodiff();
    let key_of = |path: &str| {
        let path = path.replace("conv_shortcut.", "convShortcut.");
        // The block of the SimCLR networks calls its projection `shortcut`.
        let path = match case {
            "downsample" => path,
            _ => path.replace("downsample.", "shortcut."),
        };
        format!("{case}.{path}")
    };
    let block = filled(block, key_of);
    for (mode, norm) in [("train", NormMode::Batch), ("eval", NormMode::Running)] {
        let x: Tensor<4> = fixture.input(&format!("{case}.x"), &device).require_grad();
        let y = forward(&block, x.clone(), norm);
        let dy = fixture.input(&format!("{case}.dy"), &device);
        let grads = (y.clone() * dy).sum().backward();
        fixture.compare("y", &format!("{case}.{mode}.y"), &y);
        fixture.compare("dx", &format!("{case}.{mode}.dx"), &x.grad(&grads).unwrap());
    }
}

#[test]
fn blocks_agree_with_pytorch() {
    let mut fixture = Fixture::open("blocks");
    let f = &mut fixture;
    let d = &Device::flex().autodiff();
    let option_a = resnet_cifar::BasicBlock::new(4, 8, 2, d);
    case(f, "option-a", option_a, resnet_cifar::BasicBlock::forward);
    let torchvision = resnet::Block::forward;
    let bottleneck = |i, stride| resnet::Block::new(BlockKind::Bottleneck, i, 4, stride, d);
    case(f, "bottleneck", bottleneck(8, 2), torchvision);
    case(f, "bottleneck-identity", bottleneck(16, 1), torchvision);
    let basic = resnet::Block::new(BlockKind::Basic, 4, 8, 2, d);
    case(f, "downsample", basic, torchvision);
    let pre_activation = |norm| resnet26::Block::new(8, 16, 2, norm, d);
    let forward = resnet26::Block::forward;
    case(
        f,
        "pre-activation-group",
        pre_activation(NormKind::Group),
        forward,
    );
    case(
        f,
        "pre-activation-batch",
        pre_activation(NormKind::Batch),
        forward,
    );
    let wide = wide_resnet::Block::forward;
    case(f, "wide", wide_resnet::Block::new(4, 8, 2, d), wide);
    case(
        f,
        "wide-identity",
        wide_resnet::Block::new(8, 8, 1, d),
        wide,
    );
    // Three layers deep, single precision loses about one digit more than in one op; PyTorch's own
    // float32 is at 3.5e-7.
    f.expect("y", 5e-6);
    f.expect("dx", 5e-6);
}

#[test]
fn a_transformer_block_agrees_with_pytorch() {
    let mut fixture = Fixture::open("block-transformer");
    let device = Device::flex().autodiff();
    for case in ["all", "first"] {
        let block = vit::Block::new(24, 3, 40, &device);
        let block = filled(block, |path| format!("{case}.{path}"));
        let number = |field: &str| fixture.about["cases"][case][field].as_u64().unwrap() as usize;
        let x: Tensor<2> = fixture.input(&format!("{case}.x"), &device).require_grad();
        let y = block.forward(x.clone(), number("batch"), number("queries"));
        let dy = fixture.input(&format!("{case}.dy"), &device);
        let grads = (y.clone() * dy).sum().backward();
        fixture.compare("y", &format!("{case}.y"), &y);
        fixture.compare("dx", &format!("{case}.dx"), &x.grad(&grads).unwrap());
    }
    // As for the residual blocks.
    fixture.expect("y", 5e-6);
    fixture.expect("dx", 5e-6);
}
