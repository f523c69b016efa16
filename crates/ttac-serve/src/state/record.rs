//! What a log tells: images that arrived, where learn batches end, and what was decided.

use ttac::data::{Clouds, Images, Samples};

use crate::api::{Mode, Rollback};

/// A record of a stream's log.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// An image that will be learned from.
    Sample(Sample),
    /// Images that were answered and are not learned from; they count while a stream cools.
    Passed(u32),
    /// The images since the last cut are a learn batch.
    Cut,
    /// An operator, or late labels, decided who answers.
    Mode {
        /// The new mode.
        mode: Mode,
        /// Who decided.
        by: String,
    },
    /// An operator, or late labels, decided to go back.
    Rollback {
        /// Where to.
        to: Rollback,
        /// Who decided.
        by: String,
        /// Why.
        reason: String,
    },
}

/// An image or a cloud, as the network sees it: decoders may change, and what is learned again must not.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Who sent it.
    pub client: String,
    /// The id of its request.
    pub request: String,
    /// One image or cloud; none where images are not kept on disk.
    pub values: Option<Samples>,
}

impl Record {
    /// Returns the number of the kind of record.
    pub fn kind(&self) -> u8 {
        match self {
            Self::Sample(_) => 1,
            Self::Cut => 2,
            Self::Mode { .. } => 3,
            Self::Rollback { .. } => 4,
            Self::Passed(_) => 6,
        }
    }

    /// Writes the record's body. Images are left out where they are not to be kept.
    pub fn encode(&self, images: bool) -> Vec<u8> {
        let mut body = Vec::new();
        match self {
            Self::Sample(sample) => sample.encode(images, &mut body),
            Self::Passed(count) => body.extend(count.to_le_bytes()),
            Self::Cut => {}
            Self::Mode { mode, by } => {
                let (word, number) = match *mode {
                    Mode::Off => (0, 0),
                    Mode::Shadow => (1, 0),
                    Mode::Canary(share) => (2, share.to_bits()),
                    Mode::Active => (3, 0),
                    Mode::Frozen(None) => (4, 0),
                    Mode::Frozen(Some(version)) => (5, version),
                };
                body.push(word);
                body.extend(number.to_le_bytes());
                put_text(by, &mut body);
            }
            Self::Rollback { to, by, reason } => {
                let (word, number) = match *to {
                    Rollback::Source => (0, 0),
                    Rollback::Good => (1, 0),
                    Rollback::Version(version) => (2, version),
                };
                body.push(word);
                body.extend(number.to_le_bytes());
                put_text(by, &mut body);
                put_text(reason, &mut body);
            }
        }
        body
    }

    /// Reads a record of a kind; none if the bytes are none.
    pub fn decode(kind: u8, body: &[u8]) -> Option<Self> {
        let mut reader = Reader(body);
        let record = match kind {
            1 => Self::Sample(Sample::decode(&mut reader)?),
            2 => Self::Cut,
            3 => {
                let (word, number) = (reader.u8()?, reader.u64()?);
                let mode = match word {
                    0 => Mode::Off,
                    1 => Mode::Shadow,
                    2 => Mode::Canary(f64::from_bits(number)),
                    3 => Mode::Active,
                    4 => Mode::Frozen(None),
                    5 => Mode::Frozen(Some(number)),
                    _ => return None,
                };
                let by = reader.text()?;
                Self::Mode { mode, by }
            }
            4 => {
                let (word, number) = (reader.u8()?, reader.u64()?);
                let to = match word {
                    0 => Rollback::Source,
                    1 => Rollback::Good,
                    2 => Rollback::Version(number),
                    _ => return None,
                };
                let (by, reason) = (reader.text()?, reader.text()?);
                Self::Rollback { to, by, reason }
            }
            6 => Self::Passed(reader.u32()?),
            _ => return None,
        };
        reader.0.is_empty().then_some(record)
    }
}

impl Sample {
    fn encode(&self, images: bool, body: &mut Vec<u8>) {
        put_text(&self.client, body);
        put_text(&self.request, body);
        match self.values.as_ref().filter(|_| images) {
            None => body.push(0),
            Some(Samples::Images(Images {
                height,
                width,
                pixels,
            })) => {
                body.push(1);
                body.extend((*height as u32).to_le_bytes());
                body.extend((*width as u32).to_le_bytes());
                body.extend(pixels);
            }
            Some(Samples::Clouds(Clouds { points, values })) => {
                body.push(2);
                body.extend((*points as u32).to_le_bytes());
                body.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            }
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        let (client, request) = (reader.text()?, reader.text()?);
        let values = match reader.u8()? {
            0 => None,
            1 => {
                let (height, width) = (reader.u32()? as usize, reader.u32()? as usize);
                let pixels = reader.rest().to_vec();
                let expected = height.checked_mul(width)?.checked_mul(3)?;
                (pixels.len() == expected && expected > 0).then_some(())?;
                Some(Samples::Images(Images {
                    height,
                    width,
                    pixels,
                }))
            }
            2 => {
                let points = reader.u32()? as usize;
                let (values, rest) = reader.rest().as_chunks();
                let values: Vec<f32> = values.iter().map(|&v| f32::from_le_bytes(v)).collect();
                let whole = rest.is_empty() && values.len() == points.checked_mul(3)?;
                (whole && points > 0).then_some(())?;
                Some(Samples::Clouds(Clouds { points, values }))
            }
            _ => return None,
        };
        Some(Self {
            client,
            request,
            values,
        })
    }
}

/// Adds a text with its length; of a longer one than 64 kB the rest is left out.
fn put_text(text: &str, body: &mut Vec<u8>) {
    let mut length = text.len().min(usize::from(u16::MAX));
    while !text.is_char_boundary(length) {
        length -= 1;
    }
    body.extend((length as u16).to_le_bytes());
    body.extend(&text.as_bytes()[..length]);
}

/// Takes values from the front of some bytes.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Option<String> {
        let length = usize::from(u16::from_le_bytes(self.take()?));
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Vec<Record> {
        let sample = |values| {
            Record::Sample(Sample {
                client: "camera".to_owned(),
                request: "42".to_owned(),
                values,
            })
        };
        let by = || "operator".to_owned();
        vec![
            sample(None),
            sample(Some(Samples::Images(Images {
                height: 1,
                width: 2,
                pixels: vec![1, 2, 3, 4, 5, 6],
            }))),
            sample(Some(Samples::Clouds(Clouds {
                points: 1,
                values: vec![0.5, -1.0, 2.0],
            }))),
            Record::Passed(7),
            Record::Cut,
            Record::Mode {
                mode: Mode::Canary(0.05),
                by: by(),
            },
            Record::Mode {
                mode: Mode::Frozen(Some(3)),
                by: by(),
            },
            Record::Rollback {
                to: Rollback::Version(9),
                by: by(),
                reason: "it looks wrong".to_owned(),
            },
        ]
    }

    #[test]
    fn records_come_back_as_they_were_and_no_part_of_one_is_a_record() {
        for record in records() {
            let body = record.encode(true);
            assert_eq!(Record::decode(record.kind(), &body), Some(record.clone()));
            for length in 0..body.len() {
                assert_eq!(Record::decode(record.kind(), &body[..length]), None);
            }
        }
        assert_eq!(Record::decode(99, &[]), None);
    }

    #[test]
    fn images_can_be_left_out() {
        let all = records();
        let body = all[1].encode(false);
        assert_eq!(Record::decode(1, &body), Some(all[0].clone()));
    }
}
