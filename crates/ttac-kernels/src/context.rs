//! What kernels need besides their arguments: who computes, on which instruction set, and where buffers come from.

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

#[cfg(feature = "burn")]
use crate::core::autodiff_sums::Registered;
use crate::core::recycle::FreeList;
use crate::kernels::{Algorithm, Isa};

/// Which program computes the ops on tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Implementation {
    /// Burn's own ops, on every backend.
    Composed,
    /// Our kernels, with this algorithm for convolutions. Backends other than the CPU use `Composed` in any case.
    Kernels(Algorithm),
}

impl Default for Implementation {
    fn default() -> Self {
        Self::Kernels(Algorithm::Auto)
    }
}

/// The choices and the memory of a computation.
///
/// Kernels on slices take a context as their first argument. Functions on tensors use the one of the innermost [`scope`](Self::scope) around them on
/// their thread, or the default one, which all threads share; a backward pass uses the contexts of its forward pass.
///
/// A clone is another handle to the same context. Computations with different contexts do not influence each other.
///
/// ```
/// use ttac_kernels::kernels::{Algorithm, Isa};
/// use ttac_kernels::{Context, Implementation};
///
/// let context = Context::new()
///     .with_implementation(Implementation::Kernels(Algorithm::Direct))
///     .with_isa(Isa::PORTABLE);
/// context.scope(|| assert_eq!(Context::current().isa(), Isa::PORTABLE));
/// assert_eq!(Context::current().isa(), Isa::fastest());
/// ```
#[derive(Clone, Debug)]
pub struct Context(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    implementation: Implementation,
    isa: Isa,
    free: FreeList,
    #[cfg(feature = "burn")]
    registered: Registered,
}

thread_local! {
    /// The context of the innermost scope of this thread.
    static CURRENT: RefCell<Option<Context>> = const { RefCell::new(None) };
}

/// The default is the context that all threads share: our kernels, the fastest instruction set.
impl Default for Context {
    fn default() -> Self {
        static SHARED: OnceLock<Context> = OnceLock::new();
        SHARED.get_or_init(Self::new).clone()
    }
}

impl Context {
    /// Makes a context with an empty free list of its own, for our kernels on the fastest instruction set.
    pub fn new() -> Self {
        Self::with(Implementation::default(), Isa::fastest())
    }

    fn with(implementation: Implementation, isa: Isa) -> Self {
        Self(Arc::new(Inner {
            implementation,
            isa,
            free: FreeList::default(),
            #[cfg(feature = "burn")]
            registered: Registered::default(),
        }))
    }

    /// Makes a context, with an empty free list, that differs from this one in who computes.
    pub fn with_implementation(&self, implementation: Implementation) -> Self {
        Self::with(implementation, self.isa())
    }

    /// Makes a context, with an empty free list, that differs from this one in the instruction set.
    pub fn with_isa(&self, isa: Isa) -> Self {
        Self::with(self.implementation(), isa)
    }

    /// Returns the context of the innermost scope around the caller on its thread, or the default one.
    pub fn current() -> Self {
        CURRENT.with_borrow(Clone::clone).unwrap_or_default()
    }

    /// Calls `work`, in which every op on tensors that is called from this thread uses this context. What was before is restored when `work` returns, and
    /// when it panics.
    pub fn scope<R>(&self, work: impl FnOnce() -> R) -> R {
        struct Restore(Option<Context>);
        impl Drop for Restore {
            fn drop(&mut self) {
                CURRENT.set(self.0.take());
            }
        }
        let _restore = Restore(CURRENT.replace(Some(self.clone())));
        work()
    }

    /// Returns who computes the ops on tensors.
    pub fn implementation(&self) -> Implementation {
        self.0.implementation
    }

    /// Whether algorithms are chosen for batches of a certain size, whatever the size of the batch.
    pub(crate) fn is_for_a_nominal_batch(&self) -> bool {
        matches!(
            self.0.implementation,
            Implementation::Kernels(Algorithm::AutoForBatch(_))
        )
    }

    /// Returns the instruction set of the kernels.
    pub fn isa(&self) -> Isa {
        self.0.isa
    }

    /// The algorithm of convolutions, where kernels run.
    #[cfg(feature = "burn")]
    pub(crate) fn algorithm(&self) -> Algorithm {
        match self.0.implementation {
            Implementation::Kernels(algorithm) => algorithm,
            Implementation::Composed => Algorithm::default(),
        }
    }

    /// Which tensors have gradients by our steps, in the backward passes of this context.
    #[cfg(feature = "burn")]
    pub(crate) fn registered(&self) -> &Registered {
        &self.0.registered
    }

    /// Returns an empty vector with room for `len` floats, recycled if there is one that fits.
    pub(crate) fn take(&self, len: usize) -> Vec<f32> {
        self.0.free.take(len)
    }

    /// Keeps a buffer, for instance a kernel's result that is not needed any more, for later results of this context.
    pub fn recycle(&self, buffer: Vec<f32>) {
        self.0.free.give(buffer);
    }

    /// Frees the buffers that wait to be used again.
    pub fn clear(&self) {
        self.0.free.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn portable() -> Context {
        Context::new().with_isa(Isa::PORTABLE)
    }

    #[test]
    fn scopes_nest_and_end_even_in_a_panic() {
        let direct = Implementation::Kernels(Algorithm::Direct);
        let (outer, inner) = (portable(), Context::new().with_implementation(direct));
        let same = |a: &Context, b: &Context| Arc::ptr_eq(&a.0, &b.0);
        outer.scope(|| {
            assert!(same(&Context::current(), &outer));
            let panicked = std::panic::catch_unwind(|| inner.scope(|| panic!("inside")));
            assert!(panicked.is_err());
            assert!(same(&Context::current(), &outer));
            inner.scope(|| assert!(same(&Context::current(), &inner)));
            // Another thread has scopes of its own.
            std::thread::scope(|threads| {
                threads.spawn(|| assert!(same(&Context::current(), &Context::default())));
            });
        });
        assert!(same(&Context::current(), &Context::default()));
    }

    #[test]
    fn contexts_do_not_share_buffers() {
        let (one, other) = (portable(), portable());
        let buffer = one.take(100_000);
        let address = buffer.as_ptr();
        one.recycle(buffer);
        let (elsewhere, again) = (other.take(100_000), one.clone().take(100_000));
        assert_ne!(elsewhere.as_ptr(), address);
        assert_eq!(again.as_ptr(), address);
    }
}
