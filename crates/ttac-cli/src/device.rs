//! Devices by name.

use anyhow::bail;
use ttac::burn::tensor::Device;
#[cfg(any(feature = "metal", feature = "wgpu"))]
use ttac::burn::tensor::DeviceKind;

/// Finds the device that a name stands for, in this build.
pub fn parse(name: &str) -> anyhow::Result<Device> {
    let (kind, index) = match name.split_once(':') {
        Some((kind, index)) => (kind, Some(index)),
        None => (name, None),
    };
    let index: Option<usize> = match index.map(str::parse) {
        None => None,
        Some(Ok(index)) => Some(index),
        Some(Err(_)) => bail!("device `{name}`: expected a number after `:`"),
    };
    // Without a number the system chooses, which may be an integrated graphics unit.
    #[cfg(any(feature = "metal", feature = "wgpu"))]
    let graphics = index.map_or(DeviceKind::DefaultDevice, DeviceKind::DiscreteGpu);
    Ok(match kind {
        "cpu" if index.is_none() => Device::flex(),
        #[cfg(feature = "cuda")]
        "cuda" => Device::cuda(index.unwrap_or(0)),
        #[cfg(feature = "rocm")]
        "rocm" => Device::rocm(index.unwrap_or(0)),
        #[cfg(feature = "metal")]
        "metal" => Device::metal(graphics),
        #[cfg(feature = "wgpu")]
        "wgpu" => Device::wgpu(graphics),
        #[allow(
            unreachable_patterns,
            reason = "which are in the build depends on its features"
        )]
        "cuda" | "rocm" | "metal" | "wgpu" => bail!(
            "device `{name}` is not in this build; build with `cargo build --release --features {kind}`"
        ),
        _ => bail!("unknown device `{name}`; expected `cpu`, `cuda`, `rocm`, `metal` or `wgpu`"),
    })
}
