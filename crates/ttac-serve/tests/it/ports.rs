//! Real sockets: slow clients, ports in use, encryption, the end.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::body::Bytes;
use rcgen::{CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use ttac_serve::config::ListenConfig;
use ttac_serve::{ConnectionLimits, Ended, Error, Server, Stopper};
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

use crate::formula::Formula;

/// A server on free ports, which ends with the test.
struct Running {
    formula: Arc<Formula>,
    rest: String,
    grpc: String,
    stopper: Stopper,
    thread: Option<JoinHandle<Ended>>,
}

fn free() -> ListenConfig {
    ListenConfig {
        rest: 0,
        grpc: 0,
        admin: 0,
        ..ListenConfig::default()
    }
}

impl Running {
    fn start(listen: &ListenConfig, limits: ConnectionLimits) -> Self {
        let formula = Formula::new();
        let server = Server::bind_with(listen, limits, formula.clone()).unwrap();
        let (rest, grpc) = (server.address("rest"), server.address("grpc"));
        let stopper = server.stopper();
        let thread = std::thread::spawn(move || server.run().unwrap());
        Self {
            formula,
            rest,
            grpc,
            stopper,
            thread: Some(thread),
        }
    }

    fn socket(&self) -> TcpStream {
        let (_, address) = self.rest.split_once("://").unwrap();
        Self::connect(address)
    }

    fn connect(address: &str) -> TcpStream {
        let stream = TcpStream::connect(address.parse::<SocketAddr>().unwrap()).unwrap();
        // A test that would wait for ever fails instead.
        stream
            .set_read_timeout(Some(Duration::from_mins(1)))
            .unwrap();
        stream
    }

    fn end(&mut self) -> Option<Ended> {
        self.stopper.stop();
        self.thread.take().map(|thread| thread.join().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.formula.released.store(true, Ordering::Relaxed);
        self.end();
    }
}

/// All that comes until the server closes the connection.
fn rest_of(mut stream: TcpStream) -> String {
    let mut all = Vec::new();
    // A reset ends it as well.
    let _ = stream.read_to_end(&mut all);
    String::from_utf8_lossy(&all).into_owned()
}

fn impatient() -> ConnectionLimits {
    ConnectionLimits {
        head: Duration::from_millis(200),
        body: Duration::from_millis(200),
        ..ConnectionLimits::default()
    }
}

#[test]
fn a_server_answers_until_it_is_asked_to_end() {
    let mut running = Running::start(&free(), ConnectionLimits::default());
    let mut live = ureq::get(format!("{}/v2/health/live", running.rest))
        .call()
        .unwrap();
    assert_eq!(
        live.body_mut().read_to_string().unwrap(),
        r#"{"live":true}"#
    );

    // What is under way is answered.
    let data = vec!["1"; 48].join(",");
    let body = format!(
        r#"{{"parameters":{{"stream":"slow"}},"inputs":[{{"name":"images","shape":[1,4,4,3],"datatype":"UINT8","data":[{data}]}}]}}"#
    );
    let mut slow = running.socket();
    write!(
        slow,
        "POST /v2/models/m/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut ready = running.socket();
    write!(ready, "GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut first = [0; 12];
    ready.read_exact(&mut first).unwrap();
    running.stopper.stop();
    // The idle connection is closed; only then the slow request goes on.
    rest_of(ready);
    running.formula.released.store(true, Ordering::Relaxed);
    let answer = rest_of(slow);
    assert!(
        answer.starts_with("HTTP/1.1 200") || answer.starts_with("HTTP/1.1 503"),
        "{answer}"
    );
    assert_eq!(running.end(), Some(Ended::InOrder));
}

#[test]
fn a_port_in_use_is_said_before_anything_is_served() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let listen = ListenConfig {
        admin: port,
        ..free()
    };
    let Err(error) = Server::bind(&listen, Formula::new()) else {
        panic!("the port is taken");
    };
    let text = error.to_string();
    assert!(
        text.starts_with(&format!(
            "cannot open the port `admin` at 127.0.0.1:{port}: "
        )),
        "{text}"
    );
    assert!(error.hint().unwrap().contains("`admin` in `[listen]`"));
}

#[test]
fn other_machines_are_let_in_with_tokens_alone() {
    let listen = ListenConfig {
        host: "0.0.0.0".parse().unwrap(),
        ..free()
    };
    let Err(Error::Config { problems, .. }) = Server::bind(&listen, Formula::new()) else {
        panic!("there are no tokens");
    };
    assert!(
        problems[0].contains("there are no `tokens`"),
        "{problems:?}"
    );
    let missing = ListenConfig {
        tokens: Some("none.toml".into()),
        ..free()
    };
    let Err(Error::Config { problems, .. }) = Server::bind(&missing, Formula::new()) else {
        panic!("there is no such file");
    };
    assert!(
        problems[0].contains("cannot read the tokens in `none.toml`"),
        "{problems:?}"
    );
}

#[test]
fn slow_heads_and_bodies_are_not_waited_for() {
    let running = Running::start(&free(), impatient());
    let silent = running.socket();
    assert_eq!(rest_of(silent), "");
    let mut head = running.socket();
    write!(head, "GET /v2 HTTP/1.1\r\nHo").unwrap();
    let answer = rest_of(head);
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 408"),
        "{answer}"
    );
    let mut body = running.socket();
    write!(
        body,
        "POST /v2/models/m/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{{"
    )
    .unwrap();
    let answer = rest_of(body);
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(answer.contains("the body did not come within"), "{answer}");
}

#[test]
fn heads_are_bounded() {
    let running = Running::start(&free(), ConnectionLimits::default());
    let mut stream = running.socket();
    let _ = write!(
        stream,
        "GET /v2 HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n",
        "x".repeat(400_000)
    );
    let answer = rest_of(stream);
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 431"),
        "{answer}"
    );
    let many: Vec<String> = (0..200).map(|i| format!("X{i}: 1\r\n")).collect();
    let many = many.concat();
    let mut stream = running.socket();
    let _ = write!(stream, "GET /v2 HTTP/1.1\r\nHost: localhost\r\n{many}\r\n");
    assert!(rest_of(stream).starts_with("HTTP/1.1 431"));
}

#[test]
fn connections_beyond_the_limit_wait() {
    let limits = ConnectionLimits {
        connections: 1,
        ..ConnectionLimits::default()
    };
    let running = Running::start(&free(), limits);
    let ask = |stream: &mut TcpStream| {
        write!(stream, "GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    };
    let mut first = running.socket();
    ask(&mut first);
    let mut begin = [0; 12];
    first.read_exact(&mut begin).unwrap();
    let mut second = running.socket();
    ask(&mut second);
    second
        .set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    assert!(
        second.read_exact(&mut begin).is_err(),
        "the second has to wait"
    );
    drop(first);
    second
        .set_read_timeout(Some(Duration::from_mins(1)))
        .unwrap();
    second.read_exact(&mut begin).unwrap();
    assert_eq!(&begin, b"HTTP/1.1 200");
}

#[test]
fn a_name_that_leads_here_is_refused() {
    let running = Running::start(&free(), ConnectionLimits::default());
    for (host, status) in [
        ("attacker.example:8002", "403"),
        ("127.0.0.1:8002", "200"),
        ("[::1]", "200"),
        ("localhost:1", "200"),
    ] {
        let mut stream = running.socket();
        write!(
            stream,
            "GET /v2 HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let answer = rest_of(stream);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{host}: {answer}"
        );
    }
}

// ------------------------------------------------------------------------------------- gRPC

/// Waits for what a client does.
fn wait<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(work)
}

/// Asks over a connection whether the server runs, as clients of gRPC do; returns the code of the answer.
async fn code_over(
    connection: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<String, h2::Error> {
    let (mut sender, connection) = h2::client::handshake(connection).await?;
    tokio::spawn(connection);
    let request =
        axum::http::Request::post("http://localhost/inference.GRPCInferenceService/ServerLive");
    let request = request.header("content-type", "application/grpc").body(());
    let (answer, mut message) = sender.send_request(request.unwrap(), false)?;
    message.send_data(Bytes::from_static(&[0; 5]), true)?;
    let mut body = answer.await?.into_body();
    while let Some(bytes) = body.data().await {
        bytes?;
    }
    let trailers = body.trailers().await?.unwrap();
    Ok(trailers["grpc-status"].to_str().unwrap().to_owned())
}

#[test]
fn grpc_is_spoken_over_http2_alone() {
    let mut running = Running::start(&free(), ConnectionLimits::default());
    assert!(running.grpc.parse::<SocketAddr>().is_ok());
    let code = wait(async {
        let connection = tokio::net::TcpStream::connect(&running.grpc).await.unwrap();
        code_over(connection).await.unwrap()
    });
    assert_eq!(code, "0");
    let mut other = Running::connect(&running.grpc);
    write!(other, "GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert!(!rest_of(other).contains("200"));
    assert_eq!(running.end(), Some(Ended::InOrder));
}

#[test]
fn a_stream_without_an_end_does_not_keep_the_server_from_ending() {
    let mut running = Running::start(&free(), ConnectionLimits::default());
    let (address, stopper) = (running.grpc.clone(), running.stopper.clone());
    let code = wait(async move {
        let connection = tokio::net::TcpStream::connect(address).await.unwrap();
        let (mut sender, connection) = h2::client::handshake(connection).await.unwrap();
        tokio::spawn(connection);
        let path = "http://localhost/inference.GRPCInferenceService/ModelStreamInfer";
        let request = axum::http::Request::post(path).header("content-type", "application/grpc");
        let (answer, mut messages) = sender
            .send_request(request.body(()).unwrap(), false)
            .unwrap();
        messages
            .send_data(Bytes::from_static(&[0; 5]), false)
            .unwrap();
        let mut body = answer.await.unwrap().into_body();
        // An empty request has an answer too, which says what is wrong with it.
        let first = body.data().await.unwrap().unwrap();
        assert!(String::from_utf8_lossy(&first).contains("no model is called ``"));
        stopper.stop();
        while let Some(bytes) = body.data().await {
            assert_eq!(bytes.unwrap().len(), 0);
        }
        let trailers = body.trailers().await.unwrap().unwrap();
        trailers["grpc-status"].to_str().unwrap().to_owned()
    });
    assert_eq!(code, "0");
    assert_eq!(running.end(), Some(Ended::InOrder));
}

#[test]
fn clients_of_grpc_that_ask_nothing_are_not_waited_for() {
    let running = Running::start(&free(), impatient());
    rest_of(Running::connect(&running.grpc));
    let mut greeting = Running::connect(&running.grpc);
    greeting
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .unwrap();
    rest_of(greeting);
    // Whoever has asked once is waited for, and a message that does not come whole is not.
    let code = wait(async {
        let connection = tokio::net::TcpStream::connect(&running.grpc).await.unwrap();
        let (mut sender, connection) = h2::client::handshake(connection).await.unwrap();
        tokio::spawn(connection);
        let request =
            axum::http::Request::post("http://localhost/inference.GRPCInferenceService/ModelInfer");
        let request = request.header("content-type", "application/grpc").body(());
        let (answer, mut message) = sender.send_request(request.unwrap(), false).unwrap();
        message
            .send_data(Bytes::from_static(b"\0\0\0\0\x09abc"), false)
            .unwrap();
        let answer = answer.await.unwrap();
        answer.headers()["grpc-status"].to_str().unwrap().to_owned()
    });
    assert_eq!(code, "4");
}

// ------------------------------------------------------------------------------------- encryption

/// An authority, and what it has signed.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut parameters = CertificateParams::default();
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap())
    }

    /// Writes a certificate and its key into a folder.
    fn sign(&self, folder: &Path, name: &str, expired: bool) {
        let mut parameters =
            CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        parameters.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        if expired {
            parameters.not_before = rcgen::date_time_ymd(2020, 1, 1);
            parameters.not_after = rcgen::date_time_ymd(2020, 1, 2);
        }
        let key = KeyPair::generate().unwrap();
        let issuer: &Issuer<'static, KeyPair> = &self.0;
        let certificate = parameters.signed_by(&key, issuer).unwrap();
        std::fs::write(folder.join(format!("{name}.pem")), certificate.pem()).unwrap();
        std::fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    /// Says whether a client that trusts this authority gets an answer.
    fn reaches(&self, running: &Running, client: Option<&Path>) -> Result<u16, String> {
        let roots = vec![Certificate::from_der(self.0.der()).to_owned()];
        let mut tls = TlsConfig::builder().root_certs(RootCerts::from(roots));
        if let Some(path) = client {
            let pem = |ending: &str| std::fs::read(path.with_extension(ending)).unwrap();
            let chain = vec![Certificate::from_pem(&pem("pem")).unwrap()];
            let key = PrivateKey::from_pem(&pem("key")).unwrap();
            tls = tls.client_cert(Some(ClientCert::new_with_certs(&chain, key)));
        }
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .tls_config(tls.build())
            .build()
            .into();
        let answer = agent.get(format!("{}/v2", running.rest)).call();
        answer
            .map(|answer| answer.status().as_u16())
            .map_err(|error| error.to_string())
    }
}

fn encrypted(folder: &Path, name: &str, clients: bool) -> ListenConfig {
    ListenConfig {
        certificate: Some(folder.join(format!("{name}.pem"))),
        key: Some(folder.join(format!("{name}.key"))),
        client_certificates: clients.then(|| folder.join("authority.pem")),
        ..free()
    }
}

#[test]
fn connections_are_encrypted_and_certificates_checked() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, theirs) = (Authority::new(), Authority::new());
    std::fs::write(folder.path().join("authority.pem"), ours.0.pem()).unwrap();
    ours.sign(folder.path(), "server", false);
    ours.sign(folder.path(), "old", true);
    ours.sign(folder.path(), "client", false);
    theirs.sign(folder.path(), "stranger", false);

    let open = Running::start(&encrypted(folder.path(), "server", false), impatient());
    assert!(open.rest.starts_with("https://"));
    assert_eq!(ours.reaches(&open, None), Ok(200));
    assert!(
        theirs.reaches(&open, None).is_err(),
        "a client that does not trust the authority"
    );
    let mut plain = open.socket();
    write!(plain, "GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert!(!rest_of(plain).contains("200"));
    assert!(
        !rest_of(open.socket()).contains("200"),
        "a client that says nothing is not waited for"
    );

    let expired = Running::start(
        &encrypted(folder.path(), "old", false),
        ConnectionLimits::default(),
    );
    assert!(ours.reaches(&expired, None).is_err());

    let closed = Running::start(
        &encrypted(folder.path(), "server", true),
        ConnectionLimits::default(),
    );
    assert_eq!(
        ours.reaches(&closed, Some(&folder.path().join("client.pem"))),
        Ok(200)
    );
    assert!(
        ours.reaches(&closed, None).is_err(),
        "a client without a certificate"
    );
    assert!(
        ours.reaches(&closed, Some(&folder.path().join("stranger.pem")))
            .is_err()
    );
}

#[test]
fn certificates_that_cannot_be_used_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    authority.sign(folder.path(), "a", false);
    authority.sign(folder.path(), "b", false);
    std::fs::write(folder.path().join("empty.pem"), "").unwrap();
    std::fs::write(folder.path().join("empty.key"), "").unwrap();
    let problem = |listen: &ListenConfig| match Server::bind(listen, Formula::new()) {
        Err(Error::Config { problems, .. }) => problems.join("\n"),
        _ => panic!("the certificate cannot be used"),
    };
    let mut mixed = encrypted(folder.path(), "a", false);
    mixed.key = Some(folder.path().join("b.key"));
    assert!(problem(&mixed).contains("do not go together"));
    assert!(
        problem(&encrypted(folder.path(), "empty", false)).contains("holds no certificates in PEM")
    );
    assert!(problem(&encrypted(folder.path(), "none", false)).contains("cannot read"));
}

#[test]
fn grpc_is_encrypted_by_the_same_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    authority.sign(folder.path(), "server", false);
    let running = Running::start(
        &encrypted(folder.path(), "server", false),
        ConnectionLimits::default(),
    );
    let mut roots = RootCertStore::empty();
    roots.add(authority.0.der().clone()).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = config
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec(), b"h2".to_vec()];
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let code = wait(async {
        let plain = tokio::net::TcpStream::connect(&running.grpc).await.unwrap();
        let name = "localhost".try_into().unwrap();
        let encrypted = connector.connect(name, plain).await.unwrap();
        assert_eq!(encrypted.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        code_over(encrypted).await.unwrap()
    });
    assert_eq!(code, "0");
    let plain = wait(async {
        let connection = tokio::net::TcpStream::connect(&running.grpc).await.unwrap();
        code_over(connection).await
    });
    assert!(plain.is_err());
}
