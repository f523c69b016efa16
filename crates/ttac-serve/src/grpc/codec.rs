//! How messages are read and written.

use std::marker::PhantomData;

use prost::Message;
use tonic::Status;
use tonic::codec::{self, DecodeBuf};
use tonic_prost::{ProstDecoder, ProstEncoder};

use super::status::refused;
use crate::api::Refusal;

/// Reads and writes messages. A message that cannot be read is the client's mistake, not a fault of the server.
pub struct Codec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> codec::Codec for Codec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = Decoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        Decoder(ProstDecoder::default())
    }
}

/// Reads messages.
pub struct Decoder<U>(ProstDecoder<U>);

impl<U: Message + Default> codec::Decoder for Decoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        let read = self.0.decode(bytes);
        read.map_err(|status| refused(Refusal::Invalid(status.message().to_owned())))
    }
}
