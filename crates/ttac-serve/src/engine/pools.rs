//! The threads that compute, and what they compute by.

use rayon::{ThreadPool, ThreadPoolBuilder};
use ttac::kernels::{Algorithm, Context, Implementation};

use crate::{Error, Result};

/// Algorithms of predictions are chosen for batches of this size, so that an answer is a function of weights and image. It is also the most
/// images of a pass.
pub const NOMINAL_BATCH: usize = 64;

/// Threads with a context of their own, so that nobody waits for memory that others hold.
pub struct Pool {
    threads: ThreadPool,
    context: Context,
}

impl Pool {
    /// Makes the threads that predict.
    pub fn predicting(threads: usize) -> Result<Self> {
        let implementation = Implementation::Kernels(Algorithm::AutoForBatch(NOMINAL_BATCH));
        let builder = ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|number| format!("predict-{number}"));
        Ok(Self {
            threads: builder
                .build()
                .map_err(failed("the threads that predict"))?,
            context: Context::new().with_implementation(implementation),
        })
    }

    /// Makes the threads that learn. If they are `idle`, they run only when nobody else wants the core.
    pub fn updating(threads: usize, idle: bool) -> Result<Self> {
        let builder = ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|number| format!("update-{number}"))
            .start_handler(move |_| {
                if idle {
                    yield_to_others();
                }
            });
        Ok(Self {
            threads: builder.build().map_err(failed("the threads that learn"))?,
            context: Context::new(),
        })
    }

    /// Does work in the threads of the pool, from its first to its last operation.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.threads.install(|| self.context.scope(work))
    }
}

fn failed<E: std::error::Error + Send + Sync + 'static>(
    what: &'static str,
) -> impl FnOnce(E) -> Error {
    move |source| Error::Threads {
        what,
        source: Box::new(source),
    }
}

/// Lets every other thread go first. Where the system refuses, learning only takes more time from predictions.
fn yield_to_others() {
    #[cfg(target_os = "linux")]
    {
        use thread_priority::{
            NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy,
            set_thread_priority_and_policy, thread_native_id,
        };
        let idle = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
        let _ = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, idle);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = thread_priority::ThreadPriority::Min.set_for_current();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn threads_that_learn_let_all_others_go_first() {
        use thread_priority::{
            NormalThreadSchedulePolicy as Normal, ThreadSchedulePolicy, thread_schedule_policy,
        };
        let policy = |pool: Pool| pool.run(|| thread_schedule_policy().unwrap());
        let idle = ThreadSchedulePolicy::Normal(Normal::Idle);
        assert_eq!(policy(Pool::updating(1, true).unwrap()), idle);
        assert_ne!(policy(Pool::updating(1, false).unwrap()), idle);
        assert_ne!(policy(Pool::predicting(1).unwrap()), idle);
    }

    #[test]
    fn work_stays_in_its_pool() {
        let pool = Pool::predicting(2).unwrap();
        let name = pool.run(|| std::thread::current().name().map(str::to_owned));
        assert!(name.unwrap().starts_with("predict-"));
        assert_eq!(pool.run(rayon::current_num_threads), 2);
    }
}
