//! Ports: opened before anything else is promised, served until somebody asks for the end.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, watch};
use tower::ServiceExt;

use crate::api::Service;
use crate::config::ListenConfig;
use crate::front::{BODY_TIME, Front, OTHER_CALLS, PREDICTIONS};
use crate::oip::Limits;
use crate::signals::{Asked, Signals};
use crate::tls::Encryption;
use crate::tokens::Tokens;
use crate::{Error, Result, admin, grpc, rest};

/// What a connection may take.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// How many connections a port has at once; more wait until one ends.
    pub connections: usize,
    /// How long a client may take to send the head of a request, or to agree on encryption.
    pub head: Duration,
    /// How long a client may take to send the body of a request.
    pub body: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            connections: 1024,
            head: Duration::from_secs(10),
            body: BODY_TIME,
        }
    }
}

/// About how many bytes the head of a request may have; a read that begins below may end above.
const HEAD_BYTES: usize = 64 << 10;

/// How often clients of HTTP/2 are asked whether they are still there, and how long they may take to say so.
const ALIVE: Duration = Duration::from_secs(20);

/// How many calls a connection of HTTP/2 may make at once.
const CALLS: u32 = 128;

/// How many bytes of a connection of HTTP/2, and of a call, may come before they are looked at.
const WINDOW: u32 = 256 << 10;

/// How long requests that are under way may take after the end was asked for.
const LAST_REQUESTS: Duration = Duration::from_secs(30);

/// Open ports before a service.
pub struct Server {
    front: Arc<Front>,
    listen: ListenConfig,
    limits: ConnectionLimits,
    encryption: Option<Arc<Encryption>>,
    ports: Vec<Port>,
    stop: watch::Sender<bool>,
}

/// A port that is open.
struct Port {
    name: &'static str,
    listener: TcpListener,
    address: SocketAddr,
}

/// Ends a server from another thread.
#[derive(Clone)]
pub struct Stopper(watch::Sender<bool>);

impl Stopper {
    /// Asks for the end, as SIGTERM does.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Requests that were under way have been answered.
    InOrder,
    /// Somebody asked twice.
    AtOnce,
}

impl Server {
    /// Reads tokens and certificates and opens the ports. Connections wait until [`run`](Self::run).
    pub fn bind(listen: &ListenConfig, service: Arc<dyn Service>) -> Result<Self> {
        Self::bind_with(listen, ConnectionLimits::default(), service)
    }

    /// Does the same with other limits.
    pub fn bind_with(
        listen: &ListenConfig,
        limits: ConnectionLimits,
        service: Arc<dyn Service>,
    ) -> Result<Self> {
        let mut problems = listen.problems();
        let tokens = listen.tokens.as_deref().map(Tokens::load).transpose();
        let tokens = tokens.unwrap_or_else(|problem| {
            problems.push(format!("[listen] {problem}"));
            None
        });
        let encryption = Encryption::load(listen).unwrap_or_else(|problem| {
            problems.push(format!("[listen] {problem}"));
            None
        });
        if !problems.is_empty() {
            return Err(Error::Config {
                path: None,
                problems,
            });
        }
        let requests = Limits {
            body: listen.body as usize,
            ..Limits::default()
        };
        let ports = listen.ports();
        let ports = ports.map(|(name, port)| Port::open(name, listen.host, port));
        let ports = ports.into_iter().collect::<Result<Vec<_>>>()?;
        let mut front = Front::new(service, requests, tokens).with_body_time(limits.body);
        if listen.host.is_loopback() {
            front = front.for_this_machine();
        }
        Ok(Self {
            front: Arc::new(front),
            listen: listen.clone(),
            limits,
            encryption: encryption.map(Arc::new),
            ports,
            stop: watch::Sender::new(false),
        })
    }

    /// Returns the address of a port as its clients take it: of `rest` and `admin` with a scheme, of `grpc` without.
    pub fn address(&self, name: &str) -> String {
        let scheme = match (name, self.encryption.is_some()) {
            ("grpc", _) => "",
            (_, true) => "https://",
            (_, false) => "http://",
        };
        let port = self.ports.iter().find(|port| port.name == name);
        port.map_or(String::new(), |port| format!("{scheme}{}", port.address))
    }

    /// Returns what ends the server from another thread.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.stop.clone())
    }

    /// Serves until SIGINT, SIGTERM or [`Stopper::stop`]. SIGHUP reads tokens and certificates again.
    pub fn run(self) -> Result<Ended> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(PREDICTIONS + OTHER_CALLS)
            .thread_name("ttac-serve")
            .enable_all()
            .build()
            .map_err(|error| Error::Threads {
                what: "the threads of connections",
                source: Box::new(error),
            })?;
        let ended = runtime.block_on(self.serve());
        // Calls that still wait have nobody left to answer.
        runtime.shutdown_background();
        ended
    }

    async fn serve(self) -> Result<Ended> {
        let mut signals = Signals::listen()?;
        let closing = watch::Sender::new(false);
        let mut waiting = Vec::new();
        let (front, encryption) = (self.front, self.encryption);
        for port in self.ports {
            let (router, protocol) = match port.name {
                "rest" => (rest::router(&front), Protocol::Http1),
                "grpc" => (grpc::router(&front), Protocol::Http2),
                _ => (admin::router(&front), Protocol::Http1),
            };
            let name = port.name;
            let listener = port.listen().map_err(|source| Error::Listen {
                name,
                address: port.address,
                source,
            })?;
            let places = Arc::new(Semaphore::new(self.limits.connections));
            let accepting = Accepting {
                router,
                protocol,
                encryption: encryption.clone(),
                head_time: self.limits.head,
                places: places.clone(),
                closing: closing.subscribe(),
            };
            tokio::spawn(accepting.run(listener));
            waiting.push(places);
        }
        loop {
            let asked = tokio::select! {
                asked = signals.next() => asked,
                () = until(self.stop.subscribe()) => Asked::Stop,
            };
            match asked {
                Asked::Stop => break,
                Asked::Reload => reload(&front, &self.listen, encryption.as_deref()),
            }
        }
        front.drain();
        let end = async {
            // Nobody balances between ports of one machine.
            if !self.listen.host.is_loopback() {
                tokio::time::sleep(self.listen.drain).await;
            }
            closing.send_replace(true);
            let all = async {
                for places in waiting {
                    let _ = places.acquire_many(self.limits.connections as u32).await;
                }
            };
            let _ = tokio::time::timeout(LAST_REQUESTS, all).await;
        };
        tokio::select! {
            () = end => Ok(Ended::InOrder),
            () = signals.stop() => Ok(Ended::AtOnce),
        }
    }
}

/// Waits until something that somebody waits for is true.
async fn until(mut happened: watch::Receiver<bool>) {
    // If nobody is left to say so, it will not become true, and the end is near.
    let _ = happened.wait_for(|happened| *happened).await;
}

/// Reads tokens and certificates again. What cannot be read stays as it was.
fn reload(front: &Front, listen: &ListenConfig, encryption: Option<&Encryption>) {
    let tokens = listen.tokens.as_deref().map(Tokens::load).transpose();
    match tokens {
        Ok(Some(tokens)) => front.set_tokens(tokens),
        Ok(None) => {}
        Err(problem) => tracing::error!(problem, "the tokens stay as they were"),
    }
    if let Some(Err(problem)) = encryption.map(Encryption::reload) {
        tracing::error!(problem, "the certificates stay as they were");
    }
    tracing::info!("tokens and certificates were read again");
}

impl Port {
    fn open(name: &'static str, host: IpAddr, port: u16) -> Result<Self> {
        let address = SocketAddr::new(host, port);
        let wrong = |source| Error::Listen {
            name,
            address,
            source,
        };
        let listener = TcpListener::bind(address).map_err(wrong)?;
        let address = listener.local_addr().map_err(wrong)?;
        Ok(Self {
            name,
            listener,
            address,
        })
    }

    fn listen(&self) -> std::io::Result<tokio::net::TcpListener> {
        let listener = self.listener.try_clone()?;
        listener.set_nonblocking(true)?;
        tokio::net::TcpListener::from_std(listener)
    }
}

/// What is spoken on a port.
#[derive(Clone, Copy)]
enum Protocol {
    Http1,
    Http2,
}

impl Protocol {
    /// Returns the name by which clients and servers agree on it when they encrypt.
    fn name(self) -> &'static [u8] {
        match self {
            Self::Http1 => b"http/1.1",
            Self::Http2 => b"h2",
        }
    }

    /// Returns what speaks it.
    fn builder(self, head_time: Duration) -> Builder<TokioExecutor> {
        let builder = Builder::new(TokioExecutor::new());
        match self {
            Self::Http1 => {
                let mut builder = builder.http1_only();
                builder
                    .http1()
                    .timer(TokioTimer::new())
                    .header_read_timeout(head_time)
                    .max_buf_size(HEAD_BYTES);
                builder
            }
            Self::Http2 => {
                let mut builder = builder.http2_only();
                builder
                    .http2()
                    .timer(TokioTimer::new())
                    .keep_alive_interval(Some(ALIVE))
                    .keep_alive_timeout(ALIVE)
                    .max_concurrent_streams(CALLS)
                    .initial_stream_window_size(WINDOW)
                    .initial_connection_window_size(WINDOW)
                    .max_header_list_size(HEAD_BYTES as u32);
                builder
            }
        }
    }
}

/// Takes the connections of a port.
#[derive(Clone)]
struct Accepting {
    router: Router,
    protocol: Protocol,
    encryption: Option<Arc<Encryption>>,
    head_time: Duration,
    places: Arc<Semaphore>,
    closing: watch::Receiver<bool>,
}

impl Accepting {
    async fn run(self, listener: tokio::net::TcpListener) {
        loop {
            let taken = async {
                let place = self.places.clone().acquire_owned().await.ok()?;
                Some((listener.accept().await, place))
            };
            let taken = tokio::select! {
                taken = taken => taken,
                () = until(self.closing.clone()) => None,
            };
            let Some((accepted, place)) = taken else {
                return;
            };
            let Ok((stream, _)) = accepted else {
                // Too many open files, most likely: others may close some meanwhile.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let _ = stream.set_nodelay(true);
            let one = self.clone();
            tokio::spawn(async move {
                match &one.encryption {
                    None => one.talk(stream).await,
                    Some(encryption) => {
                        let encrypted = encryption.acceptor(one.protocol.name()).accept(stream);
                        match tokio::time::timeout(one.head_time, encrypted).await {
                            Ok(Ok(stream)) => one.talk(stream).await,
                            Ok(Err(error)) => tracing::debug!(%error, "no encrypted connection"),
                            Err(_) => tracing::debug!("no encrypted connection in time"),
                        }
                    }
                }
                drop(place);
            });
        }
    }

    /// Answers the requests of a connection.
    async fn talk(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let asked = Arc::new(AtomicBool::new(false));
        let noted = asked.clone();
        let service = self.router.clone().map_request(move |request| {
            noted.store(true, Ordering::Relaxed);
            request
        });
        let builder = self.protocol.builder(self.head_time);
        let connection =
            builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
        let silent = async {
            tokio::time::sleep(self.head_time).await;
            // In HTTP/1 it is noticed below, for each request.
            if matches!(self.protocol, Protocol::Http1) || asked.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
        };
        tokio::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = until(self.closing.clone()) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
            () = silent => return,
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection broke");
        }
    }
}
