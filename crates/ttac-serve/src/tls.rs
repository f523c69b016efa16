//! Encrypted connections.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::config::ListenConfig;

/// The certificates of now, which can be read again while the server runs.
pub struct Encryption {
    listen: ListenConfig,
    current: RwLock<ServerConfig>,
}

impl Encryption {
    /// Reads the certificates, if there are some.
    pub fn load(listen: &ListenConfig) -> Result<Option<Self>, String> {
        if listen.certificate.is_none() {
            return Ok(None);
        }
        let current = RwLock::new(read(listen)?);
        let listen = listen.clone();
        Ok(Some(Self { listen, current }))
    }

    /// Reads the certificates again; those of before stay if that fails.
    pub fn reload(&self) -> Result<(), String> {
        let read = read(&self.listen)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = read;
        Ok(())
    }

    /// Returns what makes a connection encrypted, for one protocol within.
    pub fn acceptor(&self, protocol: &[u8]) -> TlsAcceptor {
        let mut config = self
            .current
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        config.alpn_protocols = vec![protocol.to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }
}

fn read(listen: &ListenConfig) -> Result<ServerConfig, String> {
    let (Some(certificate), Some(key)) = (&listen.certificate, &listen.key) else {
        return Err("`certificate` and `key` belong together, and one is missing".to_owned());
    };
    let chain = certificates(certificate)?;
    let key_bytes = bytes(key)?;
    let secret = PrivateKeyDer::from_pem_slice(&key_bytes)
        .map_err(|error| format!("`{}` holds no private key in PEM: {error}", key.display()))?;
    let provider = Arc::new(default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS cannot be set up: {error}"))?;
    let builder = match &listen.client_certificates {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            let wrong = |error: &dyn std::fmt::Display| format!("`{}`: {error}", path.display());
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| wrong(&error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().map_err(|error| wrong(&error))?)
        }
    };
    builder.with_single_cert(chain, secret).map_err(|error| {
        let (certificate, key) = (certificate.display(), key.display());
        format!(
            "the certificate in `{certificate}` and the key in `{key}` do not go together: {error}"
        )
    })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let wrong = |error: &dyn std::fmt::Display| {
        format!("`{}` holds no certificates in PEM: {error}", path.display())
    };
    let bytes = bytes(path)?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let read = read.map_err(|error| wrong(&error))?;
    if read.is_empty() {
        return Err(wrong(&"there are none"));
    }
    Ok(read)
}

fn bytes(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("cannot read `{}`: {error}", path.display()))
}
