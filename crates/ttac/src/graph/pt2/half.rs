//! The two types of 16 bits, as bits.

/// Widens half precision (5 bits of exponent, 10 of fraction), exactly.
pub(super) fn widen(bits: u16) -> f32 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let exponent = i32::from(bits >> 10 & 31);
    let fraction = u32::from(bits & 0x3ff);
    match exponent {
        // Subnormal numbers are multiples of 2^-24, which single precision holds.
        0 => sign * (fraction as f32) * (-24_f32).exp2(),
        31 => f32::from_bits(u32::from(bits >> 15) << 31 | 0x7f80_0000 | fraction << 13),
        _ => {
            let exponent = (exponent - 15 + 127) as u32;
            f32::from_bits(u32::from(bits >> 15) << 31 | exponent << 23 | fraction << 13)
        }
    }
}

/// Widens a brain float, which is the upper half of single precision, exactly.
pub(super) fn widen_brain(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Narrows to half precision, to the nearest and of two equally near to the even one; what is too large becomes infinite.
pub(super) fn narrow(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    if value.is_nan() {
        return sign | 0x7e00;
    }
    let magnitude = bits & 0x7fff_ffff;
    // 2^-14 is the smallest normal number of half precision.
    if magnitude < 0x3880_0000 {
        // A multiple of 2^-24: the product is exact, and so is the power.
        let multiple = f32::from_bits(magnitude) * 24_f32.exp2();
        return sign | multiple.round_ties_even() as u16;
    }
    // The exponents differ by 112 in their offset. A fraction that rounds up to the next power carries into the exponent.
    let rebiased = magnitude - (112 << 23);
    let rounded = round_bits(rebiased, 13).min(0x7c00);
    sign | rounded as u16
}

/// Narrows to a brain float, to the nearest and of two equally near to the even one.
pub(super) fn narrow_brain(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    let magnitude = round_bits(bits & 0x7fff_ffff, 16);
    (bits >> 16) as u16 & 0x8000 | magnitude as u16
}

/// Cuts the lower bits off, rounding to the nearest and of two equally near to the even number.
fn round_bits(bits: u32, cut: u32) -> u32 {
    let half = (1 << (cut - 1)) - 1 + (bits >> cut & 1);
    (bits + half) >> cut
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference is the crate that Burn uses; every one of the 65,536 patterns is compared, bit by bit.
    #[test]
    fn every_pattern_widens_as_burn_does() {
        for bits in 0..=u16::MAX {
            let half = burn::tensor::f16::from_bits(bits).to_f32();
            let brain = burn::tensor::bf16::from_bits(bits).to_f32();
            // Burn's crate makes signalling NaNs quiet; the payload of a NaN means nothing here.
            let same = |ours: f32, theirs: f32| {
                ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan())
            };
            assert!(same(widen(bits), half), "f16 {bits:#06x}");
            assert!(same(widen_brain(bits), brain), "bf16 {bits:#06x}");
        }
    }

    /// The same reference for narrowing: around every number of half precision and every brain float lie the midpoints to their
    /// neighbours, where rounding turns, so these and the values next to them are compared.
    #[test]
    fn numbers_and_midpoints_narrow_as_burn_does() {
        for upper in 0..=u16::MAX {
            for lower in [
                0, 1, 0xfff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff,
            ] {
                let value = f32::from_bits(u32::from(upper) << 16 | lower);
                if value.is_nan() {
                    assert!(
                        widen(narrow(value)).is_nan() && widen_brain(narrow_brain(value)).is_nan()
                    );
                    continue;
                }
                let half = burn::tensor::f16::from_f32(value).to_bits();
                let brain = burn::tensor::bf16::from_f32(value).to_bits();
                assert_eq!(narrow(value), half, "{value:e}");
                assert_eq!(narrow_brain(value), brain, "{value:e}");
            }
        }
    }
}
