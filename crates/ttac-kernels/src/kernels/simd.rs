//! Vectors of `f32`: one trait, one implementation per instruction set, chosen at run time.
//!
//! A kernel is a value that implements `Kernel`: its `run` is generic over `Simd` and always inlined. `Simd::enter` puts it into a
//! function compiled with the instruction set's features, so that every operation becomes one instruction. Everything called on the way is
//! `#[inline(always)]`; a function that is not would be compiled without the features and run many times slower.

use std::cell::Cell;
use std::sync::OnceLock;

/// An instruction set the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
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

thread_local! {
    static FORCED: Cell<Option<Isa>> = const { Cell::new(None) };
}

impl Isa {
    /// The instruction sets this processor has, slowest first.
    pub fn available() -> Vec<Self> {
        let mut all = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                all.push(Self::Avx2);
            }
            if is_x86_feature_detected!("avx512f") {
                all.push(Self::Avx512);
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            all.push(Self::Neon);
        }
        all
    }

    /// The one that kernels called from this thread use: the fastest, unless [`Isa::with`] says otherwise.
    pub fn current() -> Self {
        static FASTEST: OnceLock<Isa> = OnceLock::new();
        FORCED.get().unwrap_or_else(|| {
            *FASTEST.get_or_init(|| *Self::available().last().expect("portable is always there"))
        })
    }

    /// Runs `f` with this instruction set in every kernel that `f` calls from the current thread.
    ///
    /// # Panics
    /// If the processor does not have it.
    pub fn with<R>(self, f: impl FnOnce() -> R) -> R {
        struct Restore(Option<Isa>);
        impl Drop for Restore {
            fn drop(&mut self) {
                FORCED.set(self.0);
            }
        }
        assert!(
            Self::available().contains(&self),
            "this processor does not have {self:?}: it has {:?}",
            Self::available()
        );
        let _restore = Restore(FORCED.replace(Some(self)));
        f()
    }

    /// Floats in one vector.
    pub(crate) fn lanes(self) -> usize {
        self.run(Sizes).0
    }

    /// Vectors in one panel.
    pub(crate) fn panel(self) -> usize {
        self.run(Sizes).1
    }

    /// Runs a kernel with this instruction set.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: a value other than `Portable` comes from `available` only (`current` and `with` see to it), so the processor has it.
        unsafe {
            match self {
                Self::Portable => Portable::enter(kernel),
                #[cfg(target_arch = "x86_64")]
                Self::Avx2 => Avx2::enter(kernel),
                #[cfg(target_arch = "x86_64")]
                Self::Avx512 => Avx512::enter(kernel),
                #[cfg(target_arch = "aarch64")]
                Self::Neon => Neon::enter(kernel),
            }
        }
    }
}

/// Work to be compiled once per instruction set.
pub(crate) trait Kernel {
    /// What it returns.
    type Output;
    /// The work. Mark the implementation `#[inline(always)]`.
    ///
    /// # Safety
    /// The processor has `S`'s instruction set; further conditions are the implementor's.
    unsafe fn run<S: Simd>(self) -> Self::Output;
}

/// Lanes and panel of an instruction set.
struct Sizes;

impl Kernel for Sizes {
    type Output = (usize, usize);
    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> (usize, usize) {
        (S::LANES, S::PANEL)
    }
}

/// Multiplies and adds in registers alone, `rounds` times as many as they hold; returns how many operations that were. The processor's peak, for
/// benchmarks to compare with.
pub fn multiply_adds(rounds: usize) -> f64 {
    Isa::current().run(MultiplyAdds(rounds))
}

struct MultiplyAdds(usize);

impl Kernel for MultiplyAdds {
    type Output = f64;
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
    unsafe fn enter<K: Kernel>(kernel: K) -> K::Output;

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
    unsafe fn enter<K: Kernel>(kernel: K) -> K::Output {
        // SAFETY: needs no instruction set; the rest is the caller's promise.
        unsafe { kernel.run::<Self>() }
    }
}

/// Implements [`Simd`] by intrinsics; each argument is one operation as an expression.
macro_rules! intrinsics {
    (
        $(#[$meta:meta])* $name:ident, $vector:ty, features $features:literal, lanes $lanes:literal, sums $sums:literal, panel $panel:literal,
        splat $splat:ident, load $load:ident, store $store:ident, add $add:ident, sub $sub:ident, mul $mul:ident,
        fma |$a:ident, $b:ident, $c:ident| $fma:expr, relu |$v:ident| $relu:expr, gate |$g:ident, $w:ident| $gate:expr,
        quad |$p:ident| $quad:expr, turn |$t:ident| [$turn1:expr, $turn2:expr, $turn3:expr], merge |$m:ident| $merge:expr
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
            unsafe fn enter<K: Kernel>(kernel: K) -> K::Output {
                #[target_feature(enable = $features)]
                #[inline(never)]
                unsafe fn compiled<K: Kernel>(kernel: K) -> K::Output { unsafe { kernel.run::<$name>() } }
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

    intrinsics!(
        /// AVX2 with FMA.
        Avx2, __m256, features "avx2,fma", lanes 8, sums 12, panel 2,
        splat _mm256_set1_ps, load _mm256_loadu_ps, store _mm256_storeu_ps, add _mm256_add_ps, sub _mm256_sub_ps, mul _mm256_mul_ps,
        fma |a, b, c| _mm256_fmadd_ps(a, b, c),
        // `max` returns its second operand when one is NaN.
        relu |v| _mm256_max_ps(_mm256_setzero_ps(), v),
        gate |g, v| _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LE_OQ>(g, _mm256_setzero_ps()), v),
        quad |p| { let quad = _mm_loadu_ps(p); _mm256_set_m128(quad, quad) },
        turn |v| [_mm256_permute_ps::<0b00_11_10_01>(v), _mm256_permute_ps::<0b01_00_11_10>(v), _mm256_permute_ps::<0b10_01_00_11>(v)],
        merge |v| _mm256_blend_ps::<0b1100_1100>(_mm256_blend_ps::<0b1010_1010>(v[0], v[1]), _mm256_blend_ps::<0b1010_1010>(v[2], v[3]))
    );

    intrinsics!(
        /// AVX-512F.
        Avx512, __m512, features "avx512f,avx2,fma", lanes 16, sums 24, panel 4,
        splat _mm512_set1_ps, load _mm512_loadu_ps, store _mm512_storeu_ps, add _mm512_add_ps, sub _mm512_sub_ps, mul _mm512_mul_ps,
        fma |a, b, c| _mm512_fmadd_ps(a, b, c),
        relu |v| _mm512_max_ps(_mm512_setzero_ps(), v),
        gate |g, v| _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLE_UQ>(g, _mm512_setzero_ps()), v),
        quad |p| _mm512_broadcast_f32x4(_mm_loadu_ps(p)),
        turn |v| [_mm512_permute_ps::<0b00_11_10_01>(v), _mm512_permute_ps::<0b01_00_11_10>(v), _mm512_permute_ps::<0b10_01_00_11>(v)],
        merge |v| _mm512_mask_blend_ps(0xcccc, _mm512_mask_blend_ps(0xaaaa, v[0], v[1]), _mm512_mask_blend_ps(0xaaaa, v[2], v[3]))
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
        splat vdupq_n_f32, load vld1q_f32, store vst1q_f32, add vaddq_f32, sub vsubq_f32, mul vmulq_f32,
        fma |a, b, c| vfmaq_f32(c, a, b),
        relu |v| vmaxq_f32(v, vdupq_n_f32(0.)),
        gate |g, v| vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(v), vcleq_f32(g, vdupq_n_f32(0.)))),
        quad |p| vld1q_f32(p),
        turn |v| [vextq_f32::<1>(v, v), vextq_f32::<2>(v, v), vextq_f32::<3>(v, v)],
        merge |v| vcopyq_laneq_f32::<3, 3>(vcopyq_laneq_f32::<2, 2>(vcopyq_laneq_f32::<1, 1>(v[0], v[1]), v[2]), v[3])
    );
}
#[cfg(target_arch = "aarch64")]
pub(crate) use arm::Neon;
