//! A store in a bucket that speaks S3.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use object_store::aws::{AmazonS3, AmazonS3Builder, S3ConditionalPut};
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, RetryConfig,
};

use super::{Created, join};
use crate::runtime::runtime;
use crate::{Error, Result};

/// How long a call is tried again before it fails. Whoever can wait longer calls again.
const PATIENCE: Duration = Duration::from_secs(10);

pub struct Bucket {
    client: AmazonS3,
    name: String,
    prefix: String,
}

impl Bucket {
    /// Opens a bucket and looks into it, so that what is wrong is said at the start.
    pub fn open(bucket: &str, prefix: &str) -> Result<Self> {
        // A second call finds it installed, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let retry = RetryConfig {
            backoff: BackoffConfig::default(),
            max_retries: 5,
            retry_timeout: PATIENCE,
        };
        let connection = ClientOptions::new()
            .with_connect_timeout(Duration::from_secs(5))
            .with_timeout(Duration::from_mins(5));
        let allow_http = std::env::var("AWS_ALLOW_HTTP").is_ok_and(|value| value == "true");
        let client = AmazonS3Builder::from_env()
            .with_bucket_name(bucket)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .with_retry(retry)
            .with_client_options(connection.with_allow_http(allow_http))
            .build();
        let named = |problem: String| Error::Failed {
            what: format!("store `s3://{bucket}/{prefix}`"),
            problem,
        };
        let opened = Self {
            client: client.map_err(|error| named(chain(&error)))?,
            name: bucket.to_owned(),
            prefix: prefix.to_owned(),
        };
        opened.list("")?;
        Ok(opened)
    }

    fn path(&self, name: &str) -> Path {
        Path::from(join(&self.prefix, name))
    }

    pub fn get(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let found =
            runtime().block_on(async { self.client.get(&self.path(name)).await?.bytes().await });
        self.unless_absent(found.map(Vec::from))
    }

    pub fn has(&self, name: &str) -> Result<bool> {
        let found = runtime().block_on(self.client.head(&self.path(name)));
        Ok(self.unless_absent(found)?.is_some())
    }

    pub fn create(&self, name: &str, bytes: &[u8]) -> Result<Created> {
        let options = PutOptions::from(PutMode::Create);
        let path = self.path(name);
        let put = self
            .client
            .put_opts(&path, Bytes::copy_from_slice(bytes).into(), options);
        match runtime().block_on(put) {
            Ok(_) => Ok(Created::Now),
            Err(
                object_store::Error::AlreadyExists { .. }
                | object_store::Error::Precondition { .. },
            ) => Ok(Created::Before),
            Err(error) => Err(self.error(&error)),
        }
    }

    pub fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.path(name);
        let put = self.client.put(&path, Bytes::copy_from_slice(bytes).into());
        runtime()
            .block_on(put)
            .map_err(|error| self.error(&error))?;
        Ok(())
    }

    pub fn remove(&self, name: &str) -> Result<()> {
        let removed = runtime().block_on(self.client.delete(&self.path(name)));
        self.unless_absent(removed)?;
        Ok(())
    }

    pub fn list(&self, folder: &str) -> Result<Vec<String>> {
        let prefix = self.path(folder);
        let within = (!prefix.as_ref().is_empty()).then_some(&prefix);
        let listed = runtime().block_on(self.client.list_with_delimiter(within));
        let listed = listed.map_err(|error| self.error(&error))?;
        let names = listed
            .objects
            .iter()
            .filter_map(|object| object.location.filename());
        Ok(names.map(|name| join(folder, name)).collect())
    }

    /// Takes a file that is not there as an answer, but not a bucket that is not there.
    fn unless_absent<T>(&self, found: object_store::Result<T>) -> Result<Option<T>> {
        match found {
            Ok(found) => Ok(Some(found)),
            Err(error @ object_store::Error::NotFound { .. })
                if !chain(&error).contains("NoSuchBucket") =>
            {
                Ok(None)
            }
            Err(error) => Err(self.error(&error)),
        }
    }

    fn error(&self, error: &object_store::Error) -> Error {
        let (what, problem) = (format!("store `{self}`"), chain(error));
        let says = |words: &[&str]| words.iter().any(|word| problem.contains(word));
        let refused = [
            "AccessDenied",
            "InvalidAccessKeyId",
            "SignatureDoesNotMatch",
            "403 Forbidden",
            "401 Unauthorized",
        ];
        // Without credentials the client looks for a machine of Amazon's that would have some.
        let none = ["169.254.169.254", "metadata"];
        if says(&["NoSuchBucket"]) {
            let problem = format!("the bucket `{}` does not exist", self.name);
            return Error::Absent { what, problem };
        }
        if says(&none) && std::env::var_os("AWS_ACCESS_KEY_ID").is_none() {
            let problem = "there are none".to_owned();
            return Error::Refused { what, problem };
        }
        match error {
            object_store::Error::PermissionDenied { .. }
            | object_store::Error::Unauthenticated { .. } => Error::Refused { what, problem },
            _ if says(&refused) => Error::Refused { what, problem },
            object_store::Error::Generic { .. } => Error::Away { what, problem },
            _ => Error::Failed { what, problem },
        }
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}/{}", self.name, self.prefix)
    }
}

/// Puts an error and its causes into one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
