//! Brokers and stores on free ports of this machine, stopped by their process ids.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Says why a test skips, or what it does instead.
#[expect(clippy::print_stderr, reason = "a test that skips says so")]
pub fn say(text: &str) {
    eprintln!("{text}");
}

/// The program of an engine, or a word on why the test skips.
pub fn program(variable: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).map(PathBuf::from);
    let path = path.filter(|path| path.exists());
    if path.is_none() {
        say(&format!(
            "skipped: `${variable}` names no program; `reference/engines/install` brings it"
        ));
    }
    path
}

/// A port that nobody listens on.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// Waits until something holds.
#[track_caller]
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_mins(4), "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn answers(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

/// A process that ends with the test.
pub struct Process(pub Child);

impl Process {
    pub fn start(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::null()).spawn();
        Self(child.unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// SIGKILL, and no trace is left of it.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }

    /// SIGTERM.
    pub fn stop(&mut self) {
        let id = self.0.id().to_string();
        Command::new("kill").arg(id).status().unwrap();
    }

    pub fn is_running(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A broker that keeps its queues in a folder and can be started again.
pub struct Broker {
    program: PathBuf,
    arguments: Vec<String>,
    pub port: u16,
    folder: PathBuf,
    process: Option<Process>,
}

impl Broker {
    /// Starts a broker; none if the program is not here.
    pub fn start(folder: &Path, arguments: &[&str]) -> Option<Self> {
        let mut broker = Self {
            program: program("TTAC_NATS_SERVER")?,
            arguments: arguments
                .iter()
                .map(|&argument| argument.to_owned())
                .collect(),
            port: free_port(),
            folder: folder.to_owned(),
            process: None,
        };
        broker.start_again();
        Some(broker)
    }

    pub fn start_again(&mut self) {
        let mut command = Command::new(&self.program);
        command.args([
            "-a",
            "127.0.0.1",
            "-p",
            &self.port.to_string(),
            "-js",
            "-sd",
        ]);
        command.arg(&self.folder).args(&self.arguments);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        self.process = Some(Process::start(&mut command));
        wait_for("the broker answers", || answers(self.port));
    }

    pub fn kill(&mut self) {
        self.process.take().unwrap().kill();
    }

    pub fn address(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Three brokers, each with a copy of everything.
    pub fn cluster(folder: &Path) -> Option<Vec<Self>> {
        program("TTAC_NATS_SERVER")?;
        let routes: Vec<u16> = (0..3).map(|_| free_port()).collect();
        let all = routes.iter().map(|port| format!("nats://127.0.0.1:{port}"));
        let all = all.collect::<Vec<_>>().join(",");
        let start = |index: usize| {
            let name = format!("n{index}");
            let own = format!("nats://127.0.0.1:{}", routes[index]);
            let arguments = [
                "-n",
                &name,
                "--cluster_name",
                "ttac",
                "--cluster",
                &own,
                "--routes",
                &all,
            ];
            Self::start(&folder.join(&name), &arguments)
        };
        (0..3).map(start).collect()
    }
}

/// A store that speaks S3, with a bucket `results`. What is in it ends with the process.
pub struct Bucket {
    pub port: u16,
    _process: Process,
}

impl Bucket {
    pub fn start(variables: &[(&str, &str)]) -> Option<Self> {
        let port = free_port();
        let mut command = Command::new(program("TTAC_MOTO_SERVER")?);
        command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
        command.envs(variables.iter().copied());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let process = Process::start(&mut command);
        wait_for("the store answers", || answers(port));
        let bucket = Self {
            port,
            _process: process,
        };
        bucket.request("PUT /results");
        Some(bucket)
    }

    /// Sends a request without a body, which moto takes from anybody.
    fn request(&self, line: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let host = format!("127.0.0.1:{}", self.port);
        let signed = "Authorization: AWS4-HMAC-SHA256 Credential=me/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";
        write!(
            stream,
            "{line} HTTP/1.1\r\nHost: {host}\r\n{signed}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// The variables by which programs find this store.
    pub fn variables(port: u16) -> [(&'static str, String); 5] {
        [
            ("AWS_ENDPOINT", format!("http://127.0.0.1:{port}")),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", "me".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "secret".to_owned()),
        ]
    }
}

/// A way to a port that can be cut and mended.
pub struct Way {
    pub port: u16,
    is_cut: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Way {
    pub fn to(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let way = Self {
            port: listener.local_addr().unwrap().port(),
            is_cut: Arc::default(),
            open: Arc::default(),
        };
        let (is_cut, open) = (Arc::clone(&way.is_cut), Arc::clone(&way.open));
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let near = near.unwrap();
                let Some(far) = (!is_cut.load(Ordering::SeqCst))
                    .then(|| TcpStream::connect(("127.0.0.1", target)).ok())
                    .flatten()
                else {
                    continue;
                };
                let mut open = open.lock().unwrap();
                for (mut from, mut to) in [
                    (near.try_clone().unwrap(), far.try_clone().unwrap()),
                    (far.try_clone().unwrap(), near.try_clone().unwrap()),
                ] {
                    open.push(from.try_clone().unwrap());
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        way
    }

    pub fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub fn mend(&self) {
        self.is_cut.store(false, Ordering::SeqCst);
    }
}
