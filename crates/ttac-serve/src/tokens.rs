//! Who may do what: a file of tokens, of which only digests are stored.

use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use axum::http::StatusCode;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use serde::Deserialize;

use crate::api::Refusal;
use crate::failure::Failure;

/// What a token may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// To ask for predictions.
    Predict,
    /// To have what is sent learned from.
    Learn,
    /// To give late labels.
    Feedback,
    /// To look at streams and metrics.
    Read,
    /// To change streams.
    Admin,
}

impl Role {
    /// Returns the word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Predict => "predict",
            Self::Learn => "learn",
            Self::Feedback => "feedback",
            Self::Read => "read",
            Self::Admin => "admin",
        }
    }
}

/// The tokens of a server.
#[derive(Debug)]
pub struct Tokens(Vec<std::sync::Arc<Token>>);

#[derive(Debug)]
struct Token {
    name: String,
    digest: blake3::Hash,
    roles: Vec<Role>,
    streams: Vec<String>,
    rate: Option<(NonZeroU32, DefaultDirectRateLimiter)>,
}

/// Whoever makes a request.
#[derive(Clone, Debug)]
pub struct Caller(Option<std::sync::Arc<Token>>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenTokens {
    #[serde(default)]
    token: Vec<WrittenToken>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenToken {
    name: String,
    digest: String,
    roles: Vec<Role>,
    #[serde(default = "every_stream")]
    streams: Vec<String>,
    images_per_second: Option<NonZeroU32>,
}

fn every_stream() -> Vec<String> {
    vec!["*".to_owned()]
}

impl Tokens {
    /// Reads a file of tokens.
    pub fn load(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("cannot read the tokens in `{}`: {error}", path.display()))?;
        Self::parse(&text).map_err(|error| format!("the tokens in `{}`: {error}", path.display()))
    }

    /// Reads tokens in TOML.
    pub fn parse(text: &str) -> Result<Self, String> {
        let written: WrittenTokens = toml::from_str(text).map_err(|error| error.to_string())?;
        if written.token.is_empty() {
            return Err("expected at least one `[[token]]`, found none".to_owned());
        }
        let tokens: Result<Vec<_>, String> = written.token.into_iter().map(Token::new).collect();
        let tokens = tokens?;
        for (at, token) in tokens.iter().enumerate() {
            if tokens[..at].iter().any(|other| other.name == token.name) {
                return Err(format!("two tokens have the name `{}`", token.name));
            }
        }
        Ok(Self(tokens.into_iter().map(std::sync::Arc::new).collect()))
    }

    /// Finds out who asks, by the header `Authorization`.
    pub fn caller(&self, authorization: Option<&str>) -> Result<Caller, Failure> {
        let refused = |text: &str| Err(Failure::new(StatusCode::UNAUTHORIZED, text));
        let Some(given) = authorization else {
            return refused(
                "this server wants a token: send the header `Authorization: Bearer TOKEN`",
            );
        };
        let scheme = given
            .split_once(' ')
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let Some((_, token)) = scheme else {
            return refused("`Authorization`: expected `Bearer TOKEN`, found another scheme");
        };
        let digest = blake3::hash(token.trim().as_bytes());
        // Digests are compared in constant time, and all of them, so that time tells nothing about any.
        let mut found = None;
        for known in &self.0 {
            if known.digest == digest {
                found = Some(known.clone());
            }
        }
        match found {
            Some(token) => Ok(Caller(Some(token))),
            None => refused("the token is not one that this server knows"),
        }
    }
}

impl Token {
    fn new(written: WrittenToken) -> Result<Self, String> {
        let WrittenToken {
            name,
            digest,
            roles,
            streams,
            images_per_second,
        } = written;
        let digest = digest.strip_prefix("b3:").unwrap_or(&digest);
        let digest = blake3::Hash::from_hex(digest).map_err(|error| {
            format!(
                "`{name}`: expected the BLAKE3 digest of the token, 64 hexadecimal digits: {error}"
            )
        })?;
        if roles.is_empty() {
            return Err(format!("`{name}`: expected at least one role, found none"));
        }
        let rate = images_per_second.map(|rate| {
            // Whole requests come at once, hence a burst of two seconds.
            let burst = rate.saturating_mul(NonZeroU32::MIN.saturating_add(1));
            (
                rate,
                RateLimiter::direct(Quota::per_second(rate).allow_burst(burst)),
            )
        });
        Ok(Self {
            name,
            digest,
            roles,
            streams,
            rate,
        })
    }
}

impl Caller {
    /// Somebody on a server without tokens, who may do everything.
    pub fn anyone() -> Self {
        Self(None)
    }

    /// Returns the name of the token, if there are tokens.
    pub fn name(&self) -> Option<&str> {
        self.0.as_ref().map(|token| token.name.as_str())
    }

    /// Whether the caller has a role.
    pub fn has(&self, role: Role) -> bool {
        self.0
            .as_ref()
            .is_none_or(|token| token.roles.contains(&role))
    }

    /// Refuses callers without a role.
    pub fn check(&self, role: Role) -> Result<(), Failure> {
        if self.has(role) {
            return Ok(());
        }
        let (name, role) = (self.name().unwrap_or_default(), role.name());
        let text = format!("this needs the role `{role}`, which the token `{name}` lacks");
        Err(Failure::new(StatusCode::FORBIDDEN, text))
    }

    /// Whether the caller may know of a stream.
    pub fn sees(&self, stream: &str) -> bool {
        let Some(token) = &self.0 else { return true };
        token
            .streams
            .iter()
            .any(|pattern| match pattern.strip_suffix('*') {
                Some(beginning) => stream.starts_with(beginning),
                None => stream == pattern,
            })
    }

    /// Refuses streams of others with the words for those that are not there.
    pub fn check_stream(&self, stream: &str) -> Result<(), Refusal> {
        if self.sees(stream) {
            return Ok(());
        }
        Err(no_stream(stream))
    }

    /// Takes a number of images from what the caller may send.
    pub fn take(&self, images: usize) -> Result<(), Refusal> {
        let Some((rate, limiter)) = self.0.as_ref().and_then(|token| token.rate.as_ref()) else {
            return Ok(());
        };
        let Some(count) = u32::try_from(images).ok().and_then(NonZeroU32::new) else {
            return Ok(());
        };
        let why = || format!("the token may send {rate} images a second");
        match limiter.check_n(count) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(until)) => Err(Refusal::Quota {
                why: why(),
                after: until
                    .wait_time_from(DefaultClock::default().now())
                    .max(Duration::from_millis(1)),
            }),
            Err(_) => Err(Refusal::Invalid(format!(
                "{}, and {images} came in one request",
                why()
            ))),
        }
    }
}

/// Says that a stream is not there.
pub fn no_stream(stream: &str) -> Refusal {
    Refusal::NotFound(format!("no stream is called `{stream}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(more: &str) -> Result<Tokens, String> {
        let digest = blake3::hash(b"secret").to_hex();
        Tokens::parse(&format!(
            "[[token]]\nname = \"cam\"\ndigest = \"{digest}\"\nroles = [\"predict\"]\nstreams = [\"cam-*\", \"hall\"]\n{more}"
        ))
    }

    #[test]
    fn a_caller_is_known_by_the_digest() {
        let tokens = tokens("").unwrap();
        let caller = tokens.caller(Some("bearer secret")).unwrap();
        assert_eq!(caller.name(), Some("cam"));
        for wrong in [
            None,
            Some("secret"),
            Some("Basic secret"),
            Some("Bearer Secret"),
            Some("Bearer "),
        ] {
            assert_eq!(
                tokens.caller(wrong).unwrap_err().status,
                StatusCode::UNAUTHORIZED,
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn roles_and_streams_are_what_the_file_says() {
        let caller = tokens("").unwrap().caller(Some("Bearer secret")).unwrap();
        assert!(caller.check(Role::Predict).is_ok());
        let refused = caller.check(Role::Admin).unwrap_err();
        assert_eq!(refused.status, StatusCode::FORBIDDEN);
        assert!(refused.text.contains("role `admin`"), "{}", refused.text);
        assert!(caller.sees("cam-1") && caller.sees("hall") && !caller.sees("hall2"));
        assert_eq!(caller.check_stream("x"), Err(no_stream("x")));
        assert!(Caller::anyone().has(Role::Admin) && Caller::anyone().sees("x"));
    }

    #[test]
    fn a_rate_is_used_up() {
        let caller = tokens("images_per_second = 5")
            .unwrap()
            .caller(Some("Bearer secret"))
            .unwrap();
        assert_eq!(caller.take(10), Ok(()));
        assert!(matches!(caller.take(10), Err(Refusal::Quota { .. })));
        assert!(matches!(caller.take(11), Err(Refusal::Invalid(_))));
    }

    #[test]
    fn mistakes_in_the_file_are_named() {
        let same = format!(
            "[[token]]\nname = \"cam\"\ndigest = \"{}\"\nroles = [\"read\"]",
            "0".repeat(64)
        );
        for (more, words) in [
            ("rate = 5", "unknown field `rate`"),
            (same.as_str(), "two tokens have the name `cam`"),
        ] {
            let error = tokens(more).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        let one = |digest: &str, roles: &str| {
            Tokens::parse(&format!(
                "[[token]]\nname = \"a\"\ndigest = \"{digest}\"\nroles = {roles}"
            ))
            .unwrap_err()
        };
        assert!(one("secret", "[\"read\"]").contains("64 hexadecimal digits"));
        assert!(one(&"0".repeat(64), "[]").contains("at least one role"));
        assert!(one(&"0".repeat(64), "[\"root\"]").contains("unknown variant `root`"));
        assert!(Tokens::parse("").unwrap_err().contains("found none"));
    }
}
