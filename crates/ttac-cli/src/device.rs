//! Devices by name.

use anyhow::bail;
use ttac::burn::tensor::Device;

/// The device a name stands for, in this build.
pub fn parse(name: &str) -> anyhow::Result<Device> {
    let (kind, index) = match name.split_once(':') {
        Some((kind, index)) => (kind, Some(index)),
        None => (name, None),
    };
    let index: usize = match index.map(str::parse) {
        None => 0,
        Some(Ok(index)) => index,
        Some(Err(_)) => bail!("device `{name}`: expected a number after `:`"),
    };
    Ok(match kind {
        "cpu" if index == 0 => Device::flex(),
        #[cfg(feature = "cuda")]
        "cuda" => Device::cuda(index),
        #[cfg(feature = "rocm")]
        "rocm" => Device::rocm(index),
        #[cfg(feature = "metal")]
        "metal" => Device::metal(ttac::burn::tensor::DeviceKind::DiscreteGpu(index)),
        #[cfg(feature = "wgpu")]
        "wgpu" => Device::wgpu(ttac::burn::tensor::DeviceKind::DiscreteGpu(index)),
        "cuda" | "rocm" | "metal" | "wgpu" => bail!(
            "device `{name}` is not in this build; build with `cargo build --release --features {kind}`"
        ),
        _ => bail!("unknown device `{name}`; expected `cpu`, `cuda`, `rocm`, `metal` or `wgpu`"),
    })
}
