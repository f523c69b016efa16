//! A queue of NATS JetStream: a stream that forgets what was acknowledged, and one consumer that all workers share.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy};
use async_nats::jetstream::{AckKind, Context, Message, kv};
use async_nats::{Client, ConnectErrorKind, ConnectOptions, ServerAddr, connection::State};
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::task::JoinHandle;

use super::{Counts, QueueSettings};
use crate::runtime::runtime;
use crate::{Error, Result};

/// For how long the broker knows what was submitted. Within it a repeated message is dropped even if its work is done, so it is short; what
/// is still in the queue is refused by its subject at any time.
const REPEATS: Duration = Duration::from_secs(2);
/// How long an answer of the broker is waited for.
const ANSWER: Duration = Duration::from_secs(5);
const CONSUMER: &str = "workers";

/// A queue of pieces of work, each with a digest and a payload.
pub struct Queue {
    client: Client,
    context: Context,
    /// The name of the stream, and of the bucket in which workers say what they do.
    name: String,
    /// The address without passwords.
    address: String,
}

impl Queue {
    /// Reaches the broker, `nats://[USER:PASSWORD@]HOST[:PORT]`, or one of several with commas between them, and there the queue of a name.
    pub fn connect(address: &str, name: &str) -> Result<Self> {
        let servers: Vec<&str> = address.split(',').map(str::trim).collect();
        let shown = servers.iter().map(|server| without_password(server));
        let shown = shown.collect::<Vec<_>>().join(",");
        let wrong = || Error::Address {
            what: "queue",
            address: shown.clone(),
            expected: "`nats://[USER:PASSWORD@]HOST[:PORT]`, or several with commas between them",
        };
        let mut parsed: Vec<ServerAddr> = Vec::new();
        for server in &servers {
            let scheme = ["nats://", "tls://"]
                .iter()
                .any(|scheme| server.starts_with(scheme));
            parsed.push(server.parse().ok().filter(|_| scheme).ok_or_else(wrong)?);
        }
        let mut options = ConnectOptions::new()
            .connection_timeout(ANSWER)
            .request_timeout(Some(ANSWER))
            .name("ttac");
        let user = parsed.iter().find_map(|server| {
            let user = server.username()?.to_owned();
            Some((user, server.password().map(str::to_owned)))
        });
        options = match user {
            Some((user, Some(password))) => options.user_and_password(user, password),
            Some((token, None)) => options.token(token),
            None => options,
        };
        let what = format!("queue `{shown}`");
        let client = runtime().block_on(options.connect(parsed));
        let client = client.map_err(|error| {
            let problem = error.to_string();
            match error.kind() {
                ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                    Error::Refused { what, problem }
                }
                ConnectErrorKind::ServerParse => Error::Failed { what, problem },
                _ => Error::Away { what, problem },
            }
        })?;
        // It starts a task of its own.
        let _inside = runtime().enter();
        let mut context = async_nats::jetstream::new(client.clone());
        context.set_timeout(ANSWER);
        Ok(Self {
            client,
            context,
            name: name.to_owned(),
            address: shown,
        })
    }

    /// Makes the queue, which may be there already; a patience other than it has is taken over.
    pub fn create(&self, settings: &QueueSettings) -> Result<()> {
        let stream = Config {
            name: self.name.clone(),
            description: Some("work of ttac".to_owned()),
            subjects: vec![self.subject("*")],
            retention: RetentionPolicy::WorkQueue,
            // A second message for the same piece of work is refused as long as the first is there.
            max_messages_per_subject: 1,
            discard: DiscardPolicy::New,
            discard_new_per_subject: true,
            duplicate_window: REPEATS,
            num_replicas: settings.replicas,
            ..Config::default()
        };
        let workers = pull::Config {
            durable_name: Some(CONSUMER.to_owned()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: settings.patience,
            // Who fails is counted by the workers, who know whether it failed or was stopped.
            max_deliver: -1,
            max_ack_pending: -1,
            ..pull::Config::default()
        };
        let voices = kv::Config {
            bucket: self.voices(),
            max_age: settings.patience,
            num_replicas: settings.replicas,
            ..kv::Config::default()
        };
        runtime().block_on(async {
            let made = self.context.get_or_create_stream(stream).await;
            let made = made.map_err(|error| self.error(&error))?;
            let consumer = made.create_consumer(workers).await;
            consumer.map_err(|error| self.error(&error))?;
            let voices = self.context.create_or_update_key_value(voices).await;
            voices.map_err(|error| self.error(&error))?;
            Ok(())
        })
    }

    /// Submits a piece of work; says whether it was there already.
    pub fn submit(&self, digest: &str, payload: &[u8]) -> Result<bool> {
        let payload = Bytes::copy_from_slice(payload);
        runtime().block_on(async {
            loop {
                let message = PublishMessage::build()
                    .payload(payload.clone())
                    .message_id(digest);
                let sent = self
                    .context
                    .send_publish(self.subject(digest), message)
                    .await;
                let answer = match sent {
                    Ok(answer) => answer.await,
                    Err(error) => Err(error),
                };
                match answer {
                    Ok(answer) if !answer.duplicate => return Ok(false),
                    // It was submitted a moment ago. If it is no longer there, its work was done, and is wanted again.
                    Ok(_) if self.holds(digest).await? => return Ok(true),
                    Ok(_) => tokio::time::sleep(REPEATS / 4).await,
                    Err(error) if causes(&error).contains("per subject") => return Ok(true),
                    Err(error) if error.kind() == PublishErrorKind::StreamNotFound => {
                        return Err(self.absent());
                    }
                    Err(error) => return Err(self.error(&error)),
                }
            }
        })
    }

    /// Whether a piece of work is in the queue or taken.
    async fn holds(&self, digest: &str) -> Result<bool> {
        let stream = self.context.get_stream_no_info(&self.name).await;
        let stream = stream.map_err(|error| self.error(&error))?;
        let found = stream
            .get_last_raw_message_by_subject(&self.subject(digest))
            .await;
        Ok(found.is_ok())
    }

    /// Takes a piece of work, and waits for one so long; none if there was none. The queue waits for word of it as long as its patience
    /// lasts, then gives it to another.
    pub fn take(&self, wait: Duration) -> Result<Option<Delivery>> {
        runtime().block_on(async {
            let consumer = self.consumer().await?;
            let asked = async {
                let batch = consumer.batch().max_messages(1).expires(wait);
                let mut batch = batch.messages().await.map_err(|error| self.error(&error))?;
                match batch.next().await {
                    None => Ok(None),
                    Some(Ok(message)) => Ok(Some(message)),
                    Some(Err(error)) => Err(self.away(error.to_string())),
                }
            };
            let message = match tokio::time::timeout(wait + ANSWER, asked).await {
                Ok(found) => found?,
                Err(_) => return Err(self.away("it does not answer any more".to_owned())),
            };
            Ok(message.map(|message| Delivery {
                message,
                patience: consumer.cached_info().config.ack_wait,
                address: self.address.clone(),
            }))
        })
    }

    /// Counts the work that is left.
    pub fn counts(&self) -> Result<Counts> {
        let consumer = runtime().block_on(self.consumer())?;
        let info = consumer.cached_info();
        Ok(Counts {
            waiting: info.num_pending,
            taken: info.num_ack_pending as u64,
        })
    }

    /// Says what a worker does, until it is dropped: `text` is asked for three times in the patience of the queue. Where the broker is away,
    /// nothing is said.
    pub fn announce(&self, worker: &str, text: Arc<Mutex<String>>) -> Result<Lease> {
        let (consumer, bucket) = runtime().block_on(async {
            let bucket = self.context.get_key_value(self.voices()).await;
            let bucket = bucket.map_err(|error| self.error(&error))?;
            Ok::<_, Error>((self.consumer().await?, bucket))
        })?;
        let period = consumer.cached_info().config.ack_wait / 3;
        let worker = worker.to_owned();
        Ok(Lease(runtime().spawn(async move {
            loop {
                let said = text.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let _ = bucket.put(&worker, said.into()).await;
                tokio::time::sleep(period).await;
            }
        })))
    }

    /// Lists the workers that said something within the patience of the queue, by the broker's clock, and what they said.
    pub fn voiced(&self) -> Result<Vec<(String, String)>> {
        runtime().block_on(async {
            let bucket = self.context.get_key_value(self.voices()).await;
            let bucket = bucket.map_err(|error| self.error(&error))?;
            let keys = bucket.keys().await.map_err(|error| self.error(&error))?;
            let keys: Vec<String> = keys.filter_map(|key| async { key.ok() }).collect().await;
            let mut said = Vec::new();
            for key in keys {
                if let Ok(Some(text)) = bucket.get(&key).await {
                    said.push((key, String::from_utf8_lossy(&text).into_owned()));
                }
            }
            said.sort();
            Ok(said)
        })
    }

    /// Forgets a worker that ends.
    pub fn leave(&self, worker: &str) {
        runtime().block_on(async {
            if let Ok(bucket) = self.context.get_key_value(self.voices()).await {
                let _ = bucket.delete(worker).await;
            }
        });
    }

    async fn consumer(&self) -> Result<PullConsumer> {
        let found = self
            .context
            .get_consumer_from_stream(CONSUMER, &self.name)
            .await;
        found.map_err(|error| self.error(&error))
    }

    fn subject(&self, digest: &str) -> String {
        format!("{}.{digest}", self.name)
    }

    fn voices(&self) -> String {
        format!("{}-workers", self.name)
    }

    fn away(&self, problem: String) -> Error {
        Error::Away {
            what: format!("queue `{}`", self.address),
            problem,
        }
    }

    fn absent(&self) -> Error {
        Error::Absent {
            what: format!("queue `{}`", self.name),
            problem: format!("`{}` has no stream of this name", self.address),
        }
    }

    fn error(&self, error: &(dyn std::error::Error + 'static)) -> Error {
        let what = format!("queue `{}`", self.address);
        let problem = causes(error);
        if self.client.connection_state() != State::Connected {
            let problem = "the connection is lost".to_owned();
            return Error::Away { what, problem };
        }
        let says = |words: &[&str]| words.iter().any(|words| problem.contains(words));
        if says(&["not found"]) {
            return self.absent();
        }
        // A broker that has just started, or whose leader is being elected, says these.
        if says(&[
            "timed out",
            "no responders",
            "temporarily unavailable",
            "unavailable",
            "leader",
            "broken pipe",
            "no suitable peers",
        ]) {
            return Error::Away { what, problem };
        }
        Error::Failed { what, problem }
    }
}

/// A piece of work that was taken. If it is dropped without an answer, the queue gives it to another when its patience is over.
pub struct Delivery {
    message: Message,
    patience: Duration,
    address: String,
}

impl Delivery {
    /// Returns what was submitted.
    pub fn payload(&self) -> &[u8] {
        &self.message.payload
    }

    /// Returns how many times it was taken, with this one.
    pub fn taken(&self) -> u64 {
        self.message
            .info()
            .map_or(1, |info| info.delivered.max(1) as u64)
    }

    /// Says three times in the patience of the queue that the work goes on, until the lease is dropped.
    pub fn keep(&self) -> Lease {
        let (message, period) = (self.message.clone(), self.patience / 3);
        Lease(runtime().spawn(async move {
            loop {
                tokio::time::sleep(period).await;
                // Without a broker nobody waits for it; the next one counts.
                let _ = message.ack_with(AckKind::Progress).await;
            }
        }))
    }

    /// Says that the work is done and stored.
    pub fn done(&self) -> Result<()> {
        self.answer(AckKind::Ack)
    }

    /// Gives the work back, to be taken again after a while.
    pub fn give_back(&self, after: Duration) -> Result<()> {
        self.answer(AckKind::Nak((!after.is_zero()).then_some(after)))
    }

    /// Says that nobody needs to try again.
    pub fn give_up(&self) -> Result<()> {
        self.answer(AckKind::Term)
    }

    /// Sends an answer and waits until the broker has it.
    fn answer(&self, kind: AckKind) -> Result<()> {
        let sent = runtime().block_on(async {
            tokio::time::timeout(ANSWER, self.message.double_ack_with(kind)).await
        });
        let problem = match sent {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it does not answer any more".to_owned(),
        };
        Err(Error::Away {
            what: format!("queue `{}`", self.address),
            problem,
        })
    }
}

/// Something that is said again and again until this is dropped.
pub struct Lease(JoinHandle<()>);

impl Lease {
    /// Says it no longer.
    pub fn end(self) {
        drop(self);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Puts an error and its causes into one line.
fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

/// Shows an address without what stands before its `@`.
fn without_password(address: &str) -> String {
    match (address.split_once("://"), address.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        _ => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        assert_eq!(without_password("nats://a:b@c:1"), "nats://c:1");
        assert_eq!(without_password("nats://c"), "nats://c");
        let Err(error) = Queue::connect("http://me:secret@host", "x") else {
            panic!("this is no address of a broker");
        };
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
