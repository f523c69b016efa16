//! The thread on which connections live.

use std::sync::OnceLock;

use tokio::runtime::{Builder, Runtime};

/// Returns the runtime of this process. It has one thread, which never computes.
pub fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("ttac-fleet")
            .enable_all()
            .build()
            .expect("a thread can be started")
    })
}
