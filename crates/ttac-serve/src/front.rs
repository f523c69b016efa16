//! What every transport shares: the service, who may ask, and how much at a time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::api::{Lane, ModelInfo, Refusal, Service};
use crate::failure::Failure;
use crate::metrics::Counters;
use crate::oip::Limits;
use crate::tokens::{Caller, Tokens};

/// How many requests for predictions may be under way. Each has a thread, which waits for its pass.
pub const PREDICTIONS: usize = 128;

/// How many other calls may be under way, of operators and of pages that watch.
pub const OTHER_CALLS: usize = 64;

/// How many pages may watch streams.
pub const WATCHERS: usize = 32;

/// How many of the largest bodies are held at once.
const BODIES: usize = 8;

/// How soon calls without an end notice that the server is about to end.
const DRAIN_PAUSE: Duration = Duration::from_millis(200);

/// How long a body may take to come.
pub const BODY_TIME: Duration = Duration::from_secs(30);

/// What transports share.
pub struct Front {
    service: Arc<dyn Service>,
    /// How much a request may ask for.
    pub limits: Limits,
    /// What requests came to.
    pub counters: Counters,
    tokens: RwLock<Option<Arc<Tokens>>>,
    predictions: Arc<Semaphore>,
    other_calls: Arc<Semaphore>,
    /// Pages that may yet watch.
    pub watchers: Arc<Semaphore>,
    /// Kilobytes of bodies that may yet be held.
    bodies: Arc<Semaphore>,
    body_time: Duration,
    /// Whether the ports are open to this machine alone.
    this_machine: bool,
    draining: AtomicBool,
    failures: AtomicU64,
}

impl Front {
    /// Puts a front before a service.
    pub fn new(service: Arc<dyn Service>, limits: Limits, tokens: Option<Tokens>) -> Self {
        Self {
            service,
            limits,
            counters: Counters::default(),
            tokens: RwLock::new(tokens.map(Arc::new)),
            predictions: Arc::new(Semaphore::new(PREDICTIONS)),
            other_calls: Arc::new(Semaphore::new(OTHER_CALLS)),
            watchers: Arc::new(Semaphore::new(WATCHERS)),
            bodies: Arc::new(Semaphore::new(BODIES * kilobytes(limits.body))),
            body_time: BODY_TIME,
            this_machine: false,
            draining: AtomicBool::new(false),
            failures: AtomicU64::new(0),
        }
    }

    /// Waits another time for bodies.
    #[must_use]
    pub fn with_body_time(mut self, time: Duration) -> Self {
        self.body_time = time;
        self
    }

    /// Says that the ports are open to this machine alone.
    #[must_use]
    pub fn for_this_machine(mut self) -> Self {
        self.this_machine = true;
        self
    }

    /// Refuses requests that a page of somebody else makes a browser send: those from another origin, and those to a name that leads
    /// here although the ports are this machine's alone.
    pub fn check_origin(&self, host: Option<&str>, origin: Option<&str>) -> Result<(), Failure> {
        let forbidden = |text: String| Err(Failure::new(StatusCode::FORBIDDEN, text));
        if let Some(origin) = origin {
            let from = origin.split_once("://").map_or(origin, |(_, from)| from);
            if Some(from) != host {
                return forbidden(format!("requests of pages from `{origin}` are not taken"));
            }
        }
        let Some(host) = host.filter(|_| self.this_machine) else {
            return Ok(());
        };
        let name = host.rsplit_once(':').map_or(host, |(name, port)| {
            if port.bytes().all(|byte| byte.is_ascii_digit()) {
                name
            } else {
                host
            }
        });
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        if name == "localhost" || bare.parse::<std::net::IpAddr>().is_ok() {
            return Ok(());
        }
        forbidden(format!(
            "expected the host `localhost` or an address, found `{host}`"
        ))
    }

    /// Returns the service.
    pub fn service(&self) -> &Arc<dyn Service> {
        &self.service
    }

    /// Takes other tokens from now on.
    pub fn set_tokens(&self, tokens: Tokens) {
        *self.tokens.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(tokens));
    }

    /// Finds out who asks, by the header `Authorization`.
    pub fn caller(&self, authorization: Option<&str>) -> Result<Caller, Failure> {
        let tokens = self
            .tokens
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        match tokens {
            Some(tokens) => tokens.caller(authorization),
            None => Ok(Caller::anyone()),
        }
    }

    /// Whether requests are taken.
    pub fn ready(&self) -> bool {
        !self.draining() && self.service.ready()
    }

    /// Whether the server is about to end.
    pub fn draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Says that the server is about to end.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Finds a model by its name.
    pub fn model(&self, name: &str) -> Result<ModelInfo, Refusal> {
        let models = self.service.models();
        let known = models.iter().map(|model| format!("`{}`", model.name));
        let known = known.collect::<Vec<_>>().join(", ");
        let found = models.into_iter().find(|model| model.name == name);
        found.ok_or_else(|| {
            Refusal::NotFound(format!("no model is called `{name}`; there are {known}"))
        })
    }

    /// Runs what a prediction takes, on a thread that may wait. Beyond `PREDICTIONS` the machine is too busy.
    pub async fn predict<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        self.run(&self.predictions, work).await
    }

    /// Runs any other call to the service, on a thread that may wait.
    pub async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Service) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Failure> {
        let service = self.service.clone();
        self.run(&self.other_calls, move || Ok(work(service.as_ref())?))
            .await
    }

    async fn run<T: Send + 'static>(
        &self,
        places: &Arc<Semaphore>,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let Ok(place) = places.clone().try_acquire_owned() else {
            return Err(busy("too many requests are under way").into());
        };
        let done = tokio::task::spawn_blocking(move || {
            let result = work();
            drop(place);
            result
        });
        match done.await {
            Ok(result) => result,
            Err(error) => Err(self.internal(&error).into()),
        }
    }

    /// Notes a fault of our own in the log, and names it to the client by a number alone.
    pub fn internal(&self, error: &dyn std::fmt::Display) -> Refusal {
        let number = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        tracing::error!(failure = number, %error, "a request failed");
        Refusal::Internal(format!("a fault of the server, number {number} in its log"))
    }

    /// Takes memory for a body of which the sender says how long it is, or does not.
    pub async fn room(&self, length: Option<u64>) -> Result<OwnedSemaphorePermit, Failure> {
        let limit = self.limits.body as u64;
        let length = length.unwrap_or(limit);
        if length > limit {
            return Err(self.too_large());
        }
        let wanted = u32::try_from(kilobytes(length as usize)).unwrap_or(u32::MAX);
        let room = self.bodies.clone().acquire_many_owned(wanted);
        match tokio::time::timeout(self.body_time, room).await {
            Ok(Ok(room)) => Ok(room),
            _ => Err(busy("too many bodies are held in memory").into()),
        }
    }

    /// Waits for a body, or a part of one, which may not take too long.
    pub async fn in_time<T>(&self, read: impl Future<Output = T>) -> Result<T, Failure> {
        let read = tokio::time::timeout(self.body_time, read).await;
        read.map_err(|_| {
            let seconds = self.body_time.as_secs();
            let text = format!("the body did not come within {seconds} s");
            Failure::new(StatusCode::REQUEST_TIMEOUT, text)
        })
    }

    /// Reads a body, which may neither be too long nor take too long.
    pub async fn body(&self, body: axum::body::Body) -> Result<Vec<u8>, Failure> {
        let read = axum::body::to_bytes(body, self.limits.body);
        let bytes = self.in_time(read).await?.map_err(|error| {
            let text = error.to_string();
            if text.contains("length limit") {
                return self.too_large();
            }
            let text = format!("the body did not come whole: {text}");
            Failure::new(StatusCode::BAD_REQUEST, text)
        });
        Ok(bytes?.into())
    }

    /// Says that a body is too large.
    pub fn too_large(&self) -> Failure {
        larger_than(self.limits.body)
    }

    /// Waits until the server is about to end.
    pub async fn drained(&self) {
        while !self.draining() {
            tokio::time::sleep(DRAIN_PAUSE).await;
        }
    }
}

/// Says that a body has more bytes than it may have.
pub fn larger_than(limit: usize) -> Failure {
    let text = format!("expected a body of at most {limit} bytes, also when it is decompressed");
    Failure::new(StatusCode::PAYLOAD_TOO_LARGE, text)
}

/// Says that there is no place for a request.
pub fn busy(why: &str) -> Refusal {
    Refusal::Unavailable(format!("{why}; try again soon"))
}

fn kilobytes(bytes: usize) -> usize {
    bytes / 1024 + 1
}

/// Finds the lane of a version in the protocol's sense.
pub fn lane(version: Option<&str>) -> Result<Option<Lane>, Refusal> {
    match version {
        None | Some("") => Ok(None),
        Some("0") => Ok(Some(Lane::Source)),
        Some("1") => Ok(Some(Lane::Adapted)),
        Some(other) => Err(Refusal::NotFound(format!(
            "no version `{other}`: expected `0`, the source, or `1`, the adapted weights"
        ))),
    }
}
