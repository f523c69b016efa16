//! Vectors of `f32`: one trait, one implementation per instruction set, chosen at run time.
//!
//! A kernel is a value that implements `Kernel`: its `run` is generic over `Simd` and always inlined. `Simd::enter` puts it into a
//! function compiled with the instruction set's features, so that every operation becomes one instruction. Everything called on the way is
//! `#[inline(always)]`; a function that is not would be compiled without the features and run many times slower.

use std::fmt;
use std::sync::OnceLock;

use crate::Context;

/// An instruction set the kernels are compiled for and this processor has.
///
/// Values come from [`Isa::PORTABLE`], [`Isa::available`] and [`Isa::fastest`] alone, so whoever holds one may run code compiled for it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Isa(Set);

/// The instruction sets there are programs for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    /// Plain Rust on arrays of four; runs everywhere.
    Portable,
    /// `x86_64` with AVX2 and FMA: vectors of 8, 16 registers.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// `x86_64` with AVX-512F: vectors of 16, 32 registers.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// `aarch64`: vectors of 4, 32 registers.
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl fmt::Debug for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Isa {
    /// Plain Rust, which runs on every processor.
    pub const PORTABLE: Self = Self(Set::Portable);

    /// The instruction sets this processor has, slowest first.
    pub fn available() -> Vec<Self> {
        let mut all = vec![Self::PORTABLE];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                all.push(Self(Set::Avx2));
                // The program for AVX-512 uses AVX2 and FMA as well.
                if is_x86_feature_detected!("avx512f") {
                    all.push(Self(Set::Avx512));
                }
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            all.push(Self(Set::Neon));
        }
        all
    }

    /// The fastest instruction set this processor has.
    pub fn fastest() -> Self {
        static FASTEST: OnceLock<Isa> = OnceLock::new();
        *FASTEST.get_or_init(|| *Self::available().last().expect("portable is always there"))
    }

    /// Returns how many floats a vector has.
    pub(crate) fn lanes(self) -> usize {
        self.run_safely(Sizes).0
    }

    /// Returns how many vectors a panel has.
    pub(crate) fn panel(self) -> usize {
        self.run_safely(Sizes).1
    }

    /// Returns how many sums a register tile may hold.
    pub(crate) fn sums(self) -> usize {
        self.run_safely(Sizes).2
    }

    /// Runs a kernel with this instruction set.
    ///
    /// # Safety
    /// The conditions of the kernel's [`Kernel::run`] hold, except for the instruction set, which the processor has.
    #[inline]
    pub(crate) unsafe fn run<R, K: Kernel<R>>(self, kernel: K) -> R {
        // SAFETY: the processor has the instruction set of every value of this type; the rest is the caller's promise.
        unsafe {
            match self.0 {
                Set::Portable => Portable::enter(kernel),
                #[cfg(target_arch = "x86_64")]
                Set::Avx2 => Avx2::enter(kernel),
                #[cfg(target_arch = "x86_64")]
                Set::Avx512 => Avx512::enter(kernel),
                #[cfg(target_arch = "aarch64")]
                Set::Neon => Neon::enter(kernel),
            }
        }
    }

    /// Runs a kernel that has no conditions of its own.
    #[inline]
    pub(crate) fn run_safely<R, K: SafeKernel<R>>(self, kernel: K) -> R {
        // SAFETY: a `SafeKernel` has no conditions but the instruction set.
        unsafe { self.run(kernel) }
    }

    /// Runs plain loops as compiled for this instruction set.
    #[inline(always)]
    pub(crate) fn vectorise<R>(self, work: impl FnOnce() -> R) -> R {
        self.run_safely(Loops(work))
    }
}

/// Work to be compiled once per instruction set, which returns an `R`.
pub(crate) trait Kernel<R = ()> {
    /// Does the work. Mark the implementation `#[inline(always)]`.
    ///
    /// # Safety
    /// The processor has `S`'s instruction set, and the conditions that the implementation names hold.
    unsafe fn run<S: Simd>(self) -> R;
}

/// A kernel that any value of may be run.
///
/// # Safety
/// [`Kernel::run`] has no condition besides the instruction set.
pub(crate) unsafe trait SafeKernel<R = ()>: Kernel<R> {}

/// See [`Isa::vectorise`].
struct Loops<F>(F);

impl<R, F: FnOnce() -> R> Kernel<R> for Loops<F> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> R {
        (self.0)()
    }
}

// SAFETY: it calls a safe function.
unsafe impl<R, F: FnOnce() -> R> SafeKernel<R> for Loops<F> {}

/// Lanes, panel and sums of an instruction set.
struct Sizes;

impl Kernel<(usize, usize, usize)> for Sizes {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> (usize, usize, usize) {
        (S::LANES, S::PANEL, S::SUMS)
    }
}

// SAFETY: it reads three constants.
unsafe impl SafeKernel<(usize, usize, usize)> for Sizes {}

/// Multiplies and adds in registers alone, `rounds` times as many as they hold, and returns how many operations that were. Benchmarks compare with it, as
/// the processor's peak.
pub fn multiply_adds(context: &Context, rounds: usize) -> f64 {
    context.isa().run_safely(MultiplyAdds(rounds))
}

struct MultiplyAdds(usize);

impl Kernel<f64> for MultiplyAdds {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> f64 {
        const CHAINS: usize = 12;
        let mut kept = [0f32; 16];
        // SAFETY: the instruction set is there; a vector has at most 16 floats.
        unsafe {
            let factor = S::splat(std::hint::black_box(0.999));
            let mut sums: [S::V; CHAINS] = std::array::from_fn(|i| S::splat(i as f32));
            for _ in 0..self.0 {
                for sum in &mut sums {
                    *sum = S::fma(factor, *sum, factor);
                }
            }
            for sum in sums {
                S::store(kept.as_mut_ptr(), sum);
                std::hint::black_box(&kept);
            }
        }
        (2 * CHAINS * S::LANES * self.0) as f64
    }
}

// SAFETY: it writes to an array of its own.
unsafe impl SafeKernel<f64> for MultiplyAdds {}

/// A vector of `LANES` floats.
///
/// # Safety of every method
/// The processor has the instruction set; pointers are valid for the floats that are read or written (no alignment is asked for).
pub(crate) trait Simd: Copy + 'static {
    type V: Copy;
    /// Floats in a vector, at most 16.
    const LANES: usize;
    /// Sums a register tile may hold; the other registers are for its operands.
    const SUMS: usize;
    /// Vectors of output channels side by side in a register tile: 2 or 4. More of them need fewer loads per FMA.
    const PANEL: usize;

    /// Lane `l` is lane `l ^ BY` of `v`, for `BY` of 1, 2, 4 or 8, below `LANES`.
    unsafe fn exchange<const BY: usize>(v: Self::V) -> Self::V;
    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `max(v, 0)`, NaN stays NaN.
    unsafe fn relu(v: Self::V) -> Self::V;
    /// `v` where `gate <= 0` is false, else 0.
    unsafe fn gate(gate: Self::V, v: Self::V) -> Self::V;
    /// `a` where `gate <= 0` is false, else `b`.
    unsafe fn select(gate: Self::V, a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// The larger of both; where `v` is NaN it stays NaN.
    unsafe fn at_least(v: Self::V, bound: Self::V) -> Self::V;
    /// The smaller of both; where `v` is NaN it stays NaN.
    unsafe fn at_most(v: Self::V, bound: Self::V) -> Self::V;
    /// `2^n` for the integers `n` that adding `1.5 * 2^23` left in the low bits of `v`, for `-127 <= n <= 128`: the first gives 0, the last infinity.
    unsafe fn power_of_two(v: Self::V) -> Self::V;
    /// The four floats at `p`, again and again.
    unsafe fn quad(p: *const f32) -> Self::V;
    /// Every four lanes turned by `BY`: lane `4 m + i` is lane `4 m + (i + BY) % 4` of `v`.
    unsafe fn turn<const BY: i32>(v: Self::V) -> Self::V;
    /// Lane `4 m + i` of `vectors[i]`, for all lanes.
    unsafe fn merge(vectors: [Self::V; 4]) -> Self::V;
    /// Asks for the cache line at `p`, which will be read soon. Any address will do.
    #[inline(always)]
    fn prefetch(p: *const f32) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch never faults, and SSE is part of every `x86_64`.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = p;
    }
    /// Asks for the cache line at `p`, which will be written soon. Any address will do.
    #[inline(always)]
    fn prefetch_write(p: *const f32) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch never faults, and SSE is part of every `x86_64`.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_ET0 }>(p.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = p;
    }
    /// Compiles `kernel` with the instruction set's features and runs it. Never inlined into code without them.
    unsafe fn enter<R, K: Kernel<R>>(kernel: K) -> R;

    /// The first `n <= LANES` floats at `p`, then zeros.
    #[inline(always)]
    unsafe fn load_partial(p: *const f32, n: usize) -> Self::V {
        if n >= Self::LANES {
            // SAFETY: a full vector may be read.
            return unsafe { Self::load(p) };
        }
        let mut buffer = [0f32; 16];
        // SAFETY: the caller vouches for `n` floats at `p`; the buffer holds `LANES <= 16`.
        unsafe {
            for (i, b) in buffer.iter_mut().enumerate().take(n) {
                *b = *p.add(i);
            }
            Self::load(buffer.as_ptr())
        }
    }

    /// Writes the first `n <= LANES` floats of `v`.
    #[inline(always)]
    unsafe fn store_partial(p: *mut f32, v: Self::V, n: usize) {
        if n >= Self::LANES {
            // SAFETY: a full vector may be written.
            return unsafe { Self::store(p, v) };
        }
        let mut buffer = [0f32; 16];
        // SAFETY: the buffer holds `LANES <= 16`; the caller vouches for `n` floats at `p`.
        unsafe {
            Self::store(buffer.as_mut_ptr(), v);
            for (i, b) in buffer.iter().enumerate().take(n) {
                *p.add(i) = *b;
            }
        }
    }
}

/// Plain Rust; the compiler makes SSE2 of it on `x86_64`.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

impl Simd for Portable {
    type V = [f32; 4];
    const LANES: usize = 4;
    const SUMS: usize = 12;
    const PANEL: usize = 2;

    #[inline(always)]
    unsafe fn exchange<const BY: usize>(v: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| v[(i ^ BY) % 4])
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> [f32; 4] {
        [x; 4]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> [f32; 4] {
        // SAFETY: the caller vouches for four floats at `p`.
        unsafe { p.cast::<[f32; 4]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: [f32; 4]) {
        // SAFETY: the caller vouches for four floats at `p`.
        unsafe { p.cast::<[f32; 4]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn add(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn sub(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| a[i] - b[i])
    }
    #[inline(always)]
    unsafe fn mul(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn fma(a: [f32; 4], b: [f32; 4], c: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| a[i] * b[i] + c[i]) // two roundings: without FMA hardware `mul_add` is a slow library call
    }
    #[inline(always)]
    unsafe fn relu(v: [f32; 4]) -> [f32; 4] {
        v.map(|v| if v <= 0. { 0. } else { v })
    }
    #[inline(always)]
    unsafe fn gate(gate: [f32; 4], v: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| if gate[i] <= 0. { 0. } else { v[i] })
    }
    #[inline(always)]
    unsafe fn select(gate: [f32; 4], a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| if gate[i] <= 0. { b[i] } else { a[i] })
    }
    #[inline(always)]
    unsafe fn div(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| a[i] / b[i])
    }
    #[inline(always)]
    unsafe fn at_least(v: [f32; 4], bound: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| if v[i] < bound[i] { bound[i] } else { v[i] })
    }
    #[inline(always)]
    unsafe fn at_most(v: [f32; 4], bound: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| if v[i] > bound[i] { bound[i] } else { v[i] })
    }
    #[inline(always)]
    unsafe fn power_of_two(v: [f32; 4]) -> [f32; 4] {
        v.map(|v| f32::from_bits(v.to_bits().wrapping_add(127) << 23))
    }
    #[inline(always)]
    unsafe fn quad(p: *const f32) -> [f32; 4] {
        // SAFETY: the caller vouches for four floats at `p`.
        unsafe { Self::load(p) }
    }
    #[inline(always)]
    unsafe fn turn<const BY: i32>(v: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| v[(i + BY as usize) % 4])
    }
    #[inline(always)]
    unsafe fn merge(vectors: [[f32; 4]; 4]) -> [f32; 4] {
        std::array::from_fn(|i| vectors[i][i])
    }
    #[inline(never)]
    unsafe fn enter<R, K: Kernel<R>>(kernel: K) -> R {
        // SAFETY: needs no instruction set; the rest is the caller's promise.
        unsafe { kernel.run::<Self>() }
    }
}

/// Implements [`Simd`] by intrinsics; each argument is one operation as an expression.
macro_rules! intrinsics {
    (
        $(#[$meta:meta])* $name:ident, $vector:ty, features $features:literal, lanes $lanes:literal, sums $sums:literal, panel $panel:literal,
        exchange |$e:ident| [$exchange1:expr, $exchange2:expr, $exchange4:expr, $exchange8:expr],
        $(first |$load_p:ident, $load_n:ident| $load_first:expr, |$store_p:ident, $store_v:ident, $store_n:ident| $store_first:expr,)?
        splat $splat:ident, load $load:ident, store $store:ident, add $add:ident, sub $sub:ident, mul $mul:ident,
        fma |$a:ident, $b:ident, $c:ident| $fma:expr, relu |$v:ident| $relu:expr, gate |$g:ident, $w:ident| $gate:expr,
        quad |$p:ident| $quad:expr, turn |$t:ident| [$turn1:expr, $turn2:expr, $turn3:expr], merge |$m:ident| $merge:expr,
        div $div:ident, max |$max_v:ident, $max_bound:ident| $max:expr, min |$min_v:ident, $min_bound:ident| $min:expr,
        select |$sg:ident, $sa:ident, $sb:ident| $select:expr, power |$pv:ident| $power:expr
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        // SAFETY (all blocks): the caller of a `Simd` method vouches for the instruction set and the pointers.
        #[allow(clippy::undocumented_unsafe_blocks)]
        impl Simd for $name {
            type V = $vector;
            const LANES: usize = $lanes;
            const SUMS: usize = $sums;
            const PANEL: usize = $panel;

            #[inline(always)]
            unsafe fn exchange<const BY: usize>($e: $vector) -> $vector {
                unsafe {
                    match BY {
                        1 => $exchange1,
                        2 => $exchange2,
                        4 => $exchange4,
                        _ => $exchange8,
                    }
                }
            }
            $(
                #[inline(always)]
                unsafe fn load_partial($load_p: *const f32, $load_n: usize) -> $vector {
                    unsafe { if $load_n >= $lanes { $load($load_p) } else { $load_first } }
                }
                #[inline(always)]
                unsafe fn store_partial($store_p: *mut f32, $store_v: $vector, $store_n: usize) {
                    unsafe { if $store_n >= $lanes { $store($store_p, $store_v) } else { $store_first } }
                }
            )?
            #[inline(always)]
            unsafe fn splat(x: f32) -> $vector { unsafe { $splat(x) } }
            #[inline(always)]
            unsafe fn load(p: *const f32) -> $vector { unsafe { $load(p) } }
            #[inline(always)]
            unsafe fn store(p: *mut f32, v: $vector) { unsafe { $store(p, v) } }
            #[inline(always)]
            unsafe fn add(a: $vector, b: $vector) -> $vector { unsafe { $add(a, b) } }
            #[inline(always)]
            unsafe fn sub(a: $vector, b: $vector) -> $vector { unsafe { $sub(a, b) } }
            #[inline(always)]
            unsafe fn mul(a: $vector, b: $vector) -> $vector { unsafe { $mul(a, b) } }
            #[inline(always)]
            unsafe fn fma($a: $vector, $b: $vector, $c: $vector) -> $vector { unsafe { $fma } }
            #[inline(always)]
            unsafe fn relu($v: $vector) -> $vector { unsafe { $relu } }
            #[inline(always)]
            unsafe fn gate($g: $vector, $w: $vector) -> $vector { unsafe { $gate } }
            #[inline(always)]
            unsafe fn select($sg: $vector, $sa: $vector, $sb: $vector) -> $vector { unsafe { $select } }
            #[inline(always)]
            unsafe fn div(a: $vector, b: $vector) -> $vector { unsafe { $div(a, b) } }
            #[inline(always)]
            unsafe fn at_least($max_v: $vector, $max_bound: $vector) -> $vector { unsafe { $max } }
            #[inline(always)]
            unsafe fn at_most($min_v: $vector, $min_bound: $vector) -> $vector { unsafe { $min } }
            #[inline(always)]
            unsafe fn power_of_two($pv: $vector) -> $vector { unsafe { $power } }
            #[inline(always)]
            unsafe fn quad($p: *const f32) -> $vector { unsafe { $quad } }
            #[inline(always)]
            unsafe fn turn<const BY: i32>($t: $vector) -> $vector {
                unsafe {
                    match BY {
                        1 => $turn1,
                        2 => $turn2,
                        3 => $turn3,
                        _ => $t,
                    }
                }
            }
            #[inline(always)]
            unsafe fn merge($m: [$vector; 4]) -> $vector { unsafe { $merge } }
            #[inline(always)]
            unsafe fn enter<R, K: Kernel<R>>(kernel: K) -> R {
                #[target_feature(enable = $features)]
                #[inline(never)]
                unsafe fn compiled<R, K: Kernel<R>>(kernel: K) -> R { unsafe { kernel.run::<$name>() } }
                unsafe { compiled(kernel) }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Kernel, Simd};
    #[allow(clippy::wildcard_imports)] // a dozen intrinsics named only once each
    use std::arch::x86_64::*;

    /// The mask of the first `n <= 8` lanes.
    ///
    /// # Safety
    /// The processor has AVX.
    #[inline(always)]
    unsafe fn first_lanes(n: usize) -> __m256i {
        const ONES_AND_ZEROS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
        // SAFETY: eight of the sixteen numbers, from `8 - n` on.
        unsafe { _mm256_loadu_si256(ONES_AND_ZEROS[8 - n..].as_ptr().cast()) }
    }

    intrinsics!(
        /// AVX2 with FMA.
        Avx2, __m256, features "avx2,fma", lanes 8, sums 12, panel 2,
        exchange |v| [_mm256_permute_ps::<0b10_11_00_01>(v), _mm256_permute_ps::<0b01_00_11_10>(v), _mm256_permute2f128_ps::<1>(v, v), v],
        first |p, n| _mm256_maskload_ps(p, first_lanes(n)), |p, v, n| _mm256_maskstore_ps(p, first_lanes(n), v),
        splat _mm256_set1_ps, load _mm256_loadu_ps, store _mm256_storeu_ps, add _mm256_add_ps, sub _mm256_sub_ps, mul _mm256_mul_ps,
        fma |a, b, c| _mm256_fmadd_ps(a, b, c),
        // `max` returns its second operand when one is NaN.
        relu |v| _mm256_max_ps(_mm256_setzero_ps(), v),
        gate |g, v| _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LE_OQ>(g, _mm256_setzero_ps()), v),
        quad |p| { let quad = _mm_loadu_ps(p); _mm256_set_m128(quad, quad) },
        turn |v| [_mm256_permute_ps::<0b00_11_10_01>(v), _mm256_permute_ps::<0b01_00_11_10>(v), _mm256_permute_ps::<0b10_01_00_11>(v)],
        merge |v| _mm256_blend_ps::<0b1100_1100>(_mm256_blend_ps::<0b1010_1010>(v[0], v[1]), _mm256_blend_ps::<0b1010_1010>(v[2], v[3])),
        // `max` and `min` return their second operand when one is NaN.
        div _mm256_div_ps, max |v, bound| _mm256_max_ps(bound, v), min |v, bound| _mm256_min_ps(bound, v),
        select |g, a, b| _mm256_blendv_ps(a, b, _mm256_cmp_ps::<_CMP_LE_OQ>(g, _mm256_setzero_ps())),
        power |v| _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_castps_si256(v), _mm256_set1_epi32(127))))
    );

    intrinsics!(
        /// AVX-512F.
        Avx512, __m512, features "avx512f,avx2,fma", lanes 16, sums 24, panel 4,
        exchange |v| [
            _mm512_permute_ps::<0b10_11_00_01>(v), _mm512_permute_ps::<0b01_00_11_10>(v),
            _mm512_shuffle_f32x4::<0b10_11_00_01>(v, v), _mm512_shuffle_f32x4::<0b01_00_11_10>(v, v)
        ],
        first |p, n| _mm512_maskz_loadu_ps((1 << n) - 1, p), |p, v, n| _mm512_mask_storeu_ps(p, (1 << n) - 1, v),
        splat _mm512_set1_ps, load _mm512_loadu_ps, store _mm512_storeu_ps, add _mm512_add_ps, sub _mm512_sub_ps, mul _mm512_mul_ps,
        fma |a, b, c| _mm512_fmadd_ps(a, b, c),
        relu |v| _mm512_max_ps(_mm512_setzero_ps(), v),
        gate |g, v| _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLE_UQ>(g, _mm512_setzero_ps()), v),
        quad |p| _mm512_broadcast_f32x4(_mm_loadu_ps(p)),
        turn |v| [_mm512_permute_ps::<0b00_11_10_01>(v), _mm512_permute_ps::<0b01_00_11_10>(v), _mm512_permute_ps::<0b10_01_00_11>(v)],
        merge |v| _mm512_mask_blend_ps(0xcccc, _mm512_mask_blend_ps(0xaaaa, v[0], v[1]), _mm512_mask_blend_ps(0xaaaa, v[2], v[3])),
        div _mm512_div_ps, max |v, bound| _mm512_max_ps(bound, v), min |v, bound| _mm512_min_ps(bound, v),
        select |g, a, b| _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LE_OQ>(g, _mm512_setzero_ps()), a, b),
        power |v| _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(_mm512_castps_si512(v), _mm512_set1_epi32(127))))
    );
}
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::{Kernel, Simd};
    #[allow(clippy::wildcard_imports)] // a dozen intrinsics named only once each
    use std::arch::aarch64::*;

    intrinsics!(
        /// NEON, part of every `aarch64`.
        Neon, float32x4_t, features "neon", lanes 4, sums 24, panel 4,
        exchange |v| [vrev64q_f32(v), vextq_f32::<2>(v, v), v, v],
        splat vdupq_n_f32, load vld1q_f32, store vst1q_f32, add vaddq_f32, sub vsubq_f32, mul vmulq_f32,
        fma |a, b, c| vfmaq_f32(c, a, b),
        relu |v| vmaxq_f32(v, vdupq_n_f32(0.)),
        gate |g, v| vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(v), vcleq_f32(g, vdupq_n_f32(0.)))),
        quad |p| vld1q_f32(p),
        turn |v| [vextq_f32::<1>(v, v), vextq_f32::<2>(v, v), vextq_f32::<3>(v, v)],
        merge |v| vcopyq_laneq_f32::<3, 3>(vcopyq_laneq_f32::<2, 2>(vcopyq_laneq_f32::<1, 1>(v[0], v[1]), v[2]), v[3]),
        // `vmax` and `vmin` return NaN when one operand is.
        div vdivq_f32, max |v, bound| vmaxq_f32(v, bound), min |v, bound| vminq_f32(v, bound),
        select |g, a, b| vbslq_f32(vcleq_f32(g, vdupq_n_f32(0.)), b, a),
        power |v| vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(vreinterpretq_s32_f32(v), vdupq_n_s32(127))))
    );
}
#[cfg(target_arch = "aarch64")]
pub(crate) use arm::Neon;
