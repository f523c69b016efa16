/// Runs `work` as compiled for the widest vectors that the processor has. Only the speed depends on the processor: the
/// compiler neither reorders floating-point sums nor fuses multiplications into them.
#[inline(always)]
pub(crate) fn wide<R>(work: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(work)
}
