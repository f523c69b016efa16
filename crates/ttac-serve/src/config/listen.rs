//! Where the service is reached, and by whom.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::amount;

/// `[listen]`: addresses, tokens, certificates, limits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ListenConfig {
    /// The address that ports are opened at. Anything but this machine's own needs tokens.
    pub host: IpAddr,
    /// The port of predictions over HTTP; 0 takes a free one, as for the others.
    pub rest: u16,
    /// The port of predictions over gRPC.
    pub grpc: u16,
    /// The port of administration, metrics and the page.
    pub admin: u16,
    /// A file of tokens; without one, everybody who reaches the ports may do everything.
    pub tokens: Option<PathBuf>,
    /// Whether ports may be opened to other machines without tokens.
    pub insecure: bool,
    /// A file of certificates in PEM, the server's own first; with it, ports speak TLS alone.
    pub certificate: Option<PathBuf>,
    /// The key of the certificate, in PEM.
    pub key: Option<PathBuf>,
    /// Certificates in PEM of those who sign for clients; with it, clients have to show a certificate.
    pub client_certificates: Option<PathBuf>,
    /// How long the server says that it is not ready before it takes no more connections, so that a balancer notices.
    #[serde(with = "amount::duration")]
    pub drain: Duration,
    /// The largest body, also when it is decompressed.
    #[serde(with = "amount::bytes")]
    pub body: u64,
}

impl Default for ListenConfig {
    fn default() -> Self {
        Self {
            host: Ipv4Addr::LOCALHOST.into(),
            rest: 8000,
            grpc: 8001,
            admin: 8002,
            tokens: None,
            insecure: false,
            certificate: None,
            key: None,
            client_certificates: None,
            drain: Duration::from_secs(5),
            body: 32 << 20,
        }
    }
}

impl ListenConfig {
    pub(super) fn relative_to(&mut self, folder: &Path) {
        let paths = [
            &mut self.tokens,
            &mut self.certificate,
            &mut self.key,
            &mut self.client_certificates,
        ];
        for path in paths {
            *path = path.take().map(|path| folder.join(path));
        }
    }

    /// Lists the ports by their names.
    pub fn ports(&self) -> [(&'static str, u16); 3] {
        [
            ("rest", self.rest),
            ("grpc", self.grpc),
            ("admin", self.admin),
        ]
    }

    /// Lists what is wrong with the section. It is asked when ports are about to open, because arguments may overrule the file.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if !self.host.is_loopback() && self.tokens.is_none() && !self.insecure {
            problems.push(format!(
                "[listen] `host` {} lets other machines in, and there are no `tokens`; give a file of tokens, or say `insecure = true`",
                self.host
            ));
        }
        let ports = self.ports();
        for (at, (name, port)) in ports.iter().enumerate() {
            for (other, _) in ports[..at]
                .iter()
                .filter(|(_, other)| other == port && *port != 0)
            {
                problems.push(format!(
                    "[listen] `{other}` and `{name}` are both port {port}"
                ));
            }
        }
        if self.certificate.is_some() != self.key.is_some() {
            problems.push(
                "[listen] `certificate` and `key` belong together, and one is missing".to_owned(),
            );
        }
        if self.client_certificates.is_some() && self.certificate.is_none() {
            problems
                .push("[listen] `client_certificates` needs `certificate` and `key`".to_owned());
        }
        if !(1024..=1 << 30).contains(&self.body) {
            problems.push(format!(
                "[listen] `body` must be 1kB to 1GB, found {}B",
                self.body
            ));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_machines_need_tokens() {
        let mut listen = ListenConfig {
            host: "0.0.0.0".parse().unwrap(),
            ..ListenConfig::default()
        };
        assert!(listen.problems()[0].contains("there are no `tokens`"));
        listen.tokens = Some("tokens.toml".into());
        assert_eq!(listen.problems(), [""; 0]);
        listen.tokens = None;
        listen.insecure = true;
        assert_eq!(listen.problems(), [""; 0]);
    }

    #[test]
    fn what_does_not_fit_together_is_said() {
        let listen = ListenConfig {
            grpc: 9000,
            admin: 8000,
            key: Some("key.pem".into()),
            client_certificates: Some("clients.pem".into()),
            body: 1,
            ..ListenConfig::default()
        };
        let text = listen.problems().join("\n");
        assert!(!text.contains("`grpc`"), "{text}");
        for words in [
            "`rest` and `admin` are both port 8000",
            "belong together",
            "needs `certificate`",
            "`body` must be",
        ] {
            assert!(text.contains(words), "{text}");
        }
    }
}
