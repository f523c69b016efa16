//! The cosine transform of JPEG blocks and its inverse, in the integer arithmetic of libjpeg's accurate method.

/// Eight values that go through the same arithmetic. Sixteen bits hold all that valid images can make of them, and let
/// the compiler use the multiplications that every processor has for eight lanes.
pub(crate) type Lanes = [i16; 8];

const CONSTANT_BITS: u32 = 13;
const PASS_BITS: u32 = 2;

/// `value` as a fixed-point number.
const fn fixed(value: f64) -> i32 {
    (value * (1 << CONSTANT_BITS) as f64 + 0.5) as i32
}

const C_0_298: i32 = fixed(0.298_631_336);
const C_0_390: i32 = fixed(0.390_180_644);
const C_0_541: i32 = fixed(0.541_196_100);
const C_0_765: i32 = fixed(0.765_366_865);
const C_0_899: i32 = fixed(0.899_976_223);
const C_1_175: i32 = fixed(1.175_875_602);
const C_1_501: i32 = fixed(1.501_321_110);
const C_1_847: i32 = fixed(1.847_759_065);
const C_1_961: i32 = fixed(1.961_570_560);
const C_2_053: i32 = fixed(2.053_119_869);
const C_2_562: i32 = fixed(2.562_915_447);
const C_3_072: i32 = fixed(3.072_711_026);

/// Divides by a power of two, rounding halves up.
#[inline(always)]
fn descale(value: i32, bits: u32) -> i16 {
    ((value + (1 << (bits - 1))) >> bits) as i16
}

#[inline(always)]
fn times(value: i16, constant: i32) -> i32 {
    i32::from(value) * constant
}

/// The transform of Loeffler, Ligtenberg and Moschytz over both axes, results eight times too large.
#[inline(always)]
pub(crate) fn forward(block: &mut [Lanes; 8]) {
    *block = transposed(block);
    forward_axis(block, |value| value << PASS_BITS, CONSTANT_BITS - PASS_BITS);
    *block = transposed(block);
    forward_axis(
        block,
        |value| descale(i32::from(value), PASS_BITS),
        CONSTANT_BITS + PASS_BITS,
    );
}

#[inline(always)]
fn forward_axis(block: &mut [Lanes; 8], even: impl Fn(i16) -> i16, odd_bits: u32) {
    let input = *block;
    for lane in 0..8 {
        let at = |index: usize| input[index][lane];
        let sum = |index: usize| at(index).wrapping_add(at(7 - index));
        let difference = |index: usize| at(index).wrapping_sub(at(7 - index));
        let (outer, inner) = (sum(0).wrapping_add(sum(3)), sum(1).wrapping_add(sum(2)));
        let (outer_slope, inner_slope) = (sum(0).wrapping_sub(sum(3)), sum(1).wrapping_sub(sum(2)));
        block[0][lane] = even(outer.wrapping_add(inner));
        block[4][lane] = even(outer.wrapping_sub(inner));
        let turn = times(inner_slope.wrapping_add(outer_slope), C_0_541);
        block[2][lane] = descale(turn + times(outer_slope, C_0_765), odd_bits);
        block[6][lane] = descale(turn - times(inner_slope, C_1_847), odd_bits);

        let odd = odd_part([difference(3), difference(2), difference(1), difference(0)]);
        block[7][lane] = descale(odd[0], odd_bits);
        block[5][lane] = descale(odd[1], odd_bits);
        block[3][lane] = descale(odd[2], odd_bits);
        block[1][lane] = descale(odd[3], odd_bits);
    }
}

/// The rotation network of the odd coefficients, which is its own transpose.
#[inline(always)]
fn odd_part([a, b, c, d]: [i16; 4]) -> [i32; 4] {
    let (ac, bd) = (a.wrapping_add(c), b.wrapping_add(d));
    let shared = times(ac.wrapping_add(bd), C_1_175);
    let (ad, bc) = (
        times(a.wrapping_add(d), -C_0_899),
        times(b.wrapping_add(c), -C_2_562),
    );
    let (ac, bd) = (shared - times(ac, C_1_961), shared - times(bd, C_0_390));
    [
        times(a, C_0_298) + ad + ac,
        times(b, C_2_053) + bc + bd,
        times(c, C_3_072) + bc + ac,
        times(d, C_1_501) + ad + bd,
    ]
}

#[inline(always)]
pub(crate) fn inverse(block: &mut [Lanes; 8]) {
    inverse_axis(block, CONSTANT_BITS - PASS_BITS);
    *block = transposed(block);
    inverse_axis(block, CONSTANT_BITS + PASS_BITS + 3);
    *block = transposed(block);
}

#[inline(always)]
fn inverse_axis(block: &mut [Lanes; 8], bits: u32) {
    let input = *block;
    for lane in 0..8 {
        let at = |index: usize| input[index][lane];
        let turn = times(at(2).wrapping_add(at(6)), C_0_541);
        let (slope, flat) = (turn - times(at(6), C_1_847), turn + times(at(2), C_0_765));
        let sum = i32::from(at(0).wrapping_add(at(4))) << CONSTANT_BITS;
        let difference = i32::from(at(0).wrapping_sub(at(4))) << CONSTANT_BITS;
        let even = [
            sum + flat,
            difference + slope,
            difference - slope,
            sum - flat,
        ];
        let [a, b, c, d] = odd_part([at(7), at(5), at(3), at(1)]);
        for (index, (even, odd)) in even.into_iter().zip([d, c, b, a]).enumerate() {
            block[index][lane] = descale(even + odd, bits);
            block[7 - index][lane] = descale(even - odd, bits);
        }
    }
}

/// Three rounds of interleaving the upper with the lower half, which compilers turn into shuffles.
#[inline(always)]
fn transposed(block: &[Lanes; 8]) -> [Lanes; 8] {
    interleaved(interleaved(interleaved(*block)))
}

#[inline(always)]
fn interleaved([a, b, c, d, e, f, g, h]: [Lanes; 8]) -> [Lanes; 8] {
    let low = |x: Lanes, y: Lanes| [x[0], y[0], x[1], y[1], x[2], y[2], x[3], y[3]];
    let high = |x: Lanes, y: Lanes| [x[4], y[4], x[5], y[5], x[6], y[6], x[7], y[7]];
    [
        low(a, e),
        high(a, e),
        low(b, f),
        high(b, f),
        low(c, g),
        high(c, g),
        low(d, h),
        high(d, h),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposing_swaps_rows_and_columns() {
        let block =
            std::array::from_fn(|row| std::array::from_fn(|column| (8 * row + column) as i16));
        let expected =
            std::array::from_fn(|row| std::array::from_fn(|column| (8 * column + row) as i16));
        assert_eq!(transposed(&block), expected);
    }
}
