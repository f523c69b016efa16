//! The messages of a call, each read whole within the limits of bodies before anybody looks into it.

use std::sync::{Arc, Mutex, PoisonError};

use axum::body::{Body, BodyDataStream, Bytes};
use futures_util::StreamExt;
use tokio::sync::OwnedSemaphorePermit;
use tonic::Status;

use super::{Kind, SMALL, bounds};
use crate::api::Refusal;
use crate::failure::Failure;
use crate::front::{Front, larger_than};
use crate::oip::{self, Encoding, TooMuch};

/// How many bytes stand before a message: whether it is compressed, and its length.
const HEAD: usize = 5;

/// Memory for the message of a call that is looked at. It is given back when the call ends, or the next message is waited for.
#[derive(Clone, Default)]
pub struct Room(Arc<Mutex<Option<OwnedSemaphorePermit>>>);

impl Room {
    fn set(&self, room: Option<OwnedSemaphorePermit>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = room;
    }
}

/// Passes on the messages of a body that are within the limits, decompressed.
pub fn bounded(front: Arc<Front>, body: Body, kind: Kind, encoding: Encoding, room: Room) -> Body {
    let most = match kind {
        Kind::Infer | Kind::StreamInfer => front.limits.body,
        Kind::Open | Kind::Other => SMALL.min(front.limits.body),
    };
    let frames = Frames {
        front,
        body: body.into_data_stream(),
        kind,
        encoding,
        most,
        taken: false,
        buffer: Vec::new(),
        room,
    };
    let messages = futures_util::stream::unfold(Some(frames), |frames| async {
        let mut frames = frames?;
        match frames.next().await {
            Ok(message) => message.map(|message| (Ok(message), Some(frames))),
            Err(failure) => Some((Err(Status::from(failure)), None)),
        }
    });
    Body::from_stream(messages)
}

/// A body that is read message by message.
struct Frames {
    front: Arc<Front>,
    body: BodyDataStream,
    kind: Kind,
    encoding: Encoding,
    /// The most bytes of a message.
    most: usize,
    /// Whether a message has come.
    taken: bool,
    /// What has come and was not passed on.
    buffer: Vec<u8>,
    room: Room,
}

impl Frames {
    /// Returns the next message with its head; none at the end of the body.
    async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        let front = self.front.clone();
        if self.kind == Kind::StreamInfer {
            // The message of before was answered. There may be silence for as long as the client likes.
            self.room.set(None);
            if !self.fill(1).await? {
                return Ok(None);
            }
        } else if self.taken {
            let more = front.in_time(self.fill(1)).await??;
            return if more {
                Err(invalid("expected a call of one message, found more"))
            } else {
                Ok(None)
            };
        }
        self.taken = true;
        let length = front.in_time(self.length()).await??;
        self.room.set(Some(front.room(Some(length as u64)).await?));
        let message = front.in_time(self.whole(HEAD + length)).await??;
        let message = self.decompressed(message).await?;
        if matches!(self.kind, Kind::Infer | Kind::StreamInfer) {
            bounds::check(&message[HEAD..])?;
        }
        Ok(Some(message.into()))
    }

    /// Reads the head of a message, and returns how long the message is.
    async fn length(&mut self) -> Result<usize, Failure> {
        if !self.fill(HEAD).await? {
            return Err(cut());
        }
        let length = self.buffer[1..].first_chunk().ok_or_else(cut)?;
        let length = u32::from_be_bytes(*length) as usize;
        if length > self.most {
            return Err(larger_than(self.most));
        }
        Ok(length)
    }

    /// Reads a message of so many bytes with its head.
    async fn whole(&mut self, bytes: usize) -> Result<Vec<u8>, Failure> {
        let missing = bytes.saturating_sub(self.buffer.len());
        self.buffer.reserve_exact(missing);
        if !self.fill(bytes).await? {
            return Err(cut());
        }
        let rest = self.buffer.split_off(bytes);
        Ok(std::mem::replace(&mut self.buffer, rest))
    }

    /// Reads until there are so many bytes. Says whether there are.
    async fn fill(&mut self, wanted: usize) -> Result<bool, Failure> {
        while self.buffer.len() < wanted {
            match self.body.next().await {
                Some(Ok(bytes)) => self.buffer.extend_from_slice(&bytes),
                Some(Err(error)) => {
                    return Err(invalid(format!("the call did not come whole: {error}")));
                }
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Decompresses a message if its head says that it is compressed.
    async fn decompressed(&mut self, message: Vec<u8>) -> Result<Vec<u8>, Failure> {
        match message[0] {
            0 => return Ok(message),
            1 if self.encoding != Encoding::Identity => {}
            1 => {
                let text = "a message is compressed, and `grpc-encoding` does not say how";
                return Err(invalid(text));
            }
            other => {
                let text = format!("expected a message that begins with 0 or 1, found {other}");
                return Err(invalid(text));
            }
        }
        let (encoding, most) = (self.encoding, self.most);
        let decompress = move || oip::decompress(encoding, message[HEAD..].to_vec(), most);
        // That takes longer than threads of connections may be kept.
        let message = match tokio::task::spawn_blocking(decompress).await {
            Ok(Ok(message)) => message,
            Ok(Err(TooMuch::Large)) => return Err(larger_than(most)),
            Ok(Err(TooMuch::Damaged(refusal))) => return Err(refusal.into()),
            Err(error) => return Err(self.front.internal(&error).into()),
        };
        let mut whole = vec![0];
        whole.extend((message.len() as u32).to_be_bytes());
        whole.extend(message);
        Ok(whole)
    }
}

fn cut() -> Failure {
    invalid("the call ends before its message does")
}

fn invalid(text: impl Into<String>) -> Failure {
    Refusal::Invalid(text.into()).into()
}
