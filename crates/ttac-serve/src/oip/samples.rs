//! What of a request becomes the samples of a model.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ttac::data::{Clouds, Images, Picture, PictureLimits, Samples};
use ttac::input::InputContract;

use super::{Tensor, Values, invalid};
use crate::api::Refusal;

/// How far a pixel may lie beyond what a picture can have, before another normalisation is the likelier reason.
const PIXEL_TOLERANCE: f32 = 0.02;

/// How much a request may ask for.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most bytes of a body, also when it is decompressed.
    pub body: usize,
    /// The most samples of a request.
    pub samples: usize,
    /// The largest picture.
    pub picture: PictureLimits,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: 32 << 20,
            samples: 256,
            picture: PictureLimits {
                side: 8192,
                pixels: 16 << 20,
                bytes: 64 << 20,
            },
        }
    }
}

impl Limits {
    /// Narrows to what a model takes.
    pub fn for_model(self, largest_batch: usize) -> Self {
        Self {
            samples: self.samples.min(largest_batch),
            ..self
        }
    }
}

/// Makes the inputs of a request into samples of the model's size. There has to be exactly one input.
pub fn samples(
    mut inputs: Vec<Tensor>,
    contract: &InputContract,
    limits: &Limits,
) -> Result<Samples, Refusal> {
    let input = match (inputs.pop(), inputs.len()) {
        (Some(input), 0) => input,
        (_, more) => {
            let (found, names) = (if more == 0 { 0 } else { more + 1 }, names(contract));
            return Err(invalid(format!(
                "expected one input, one of {names}; found {found}"
            )));
        }
    };
    if let Some(&found) = input.shape.first()
        && found > limits.samples as u64
    {
        let most = limits.samples;
        return Err(input.wrong(&format!("expected at most {most} samples, found {found}")));
    }
    match (contract, input.name.as_str()) {
        (&InputContract::Images { height, width, .. }, "images") => {
            images(input, (height, width), limits).map(Samples::from)
        }
        (&InputContract::Images { height, width, .. }, "files") => {
            files(input, (height, width), limits).map(Samples::from)
        }
        (
            InputContract::Images {
                height,
                width,
                mean,
                std,
            },
            "pixel_values",
        ) => pixel_values(input, (*height, *width), (mean, std), limits).map(Samples::from),
        (&InputContract::Clouds { points, .. }, "points") => {
            clouds(input, points, limits).map(Samples::from)
        }
        (_, name) => {
            let expected = names(contract);
            Err(invalid(format!(
                "input: expected one of {expected}, found `{name}`"
            )))
        }
    }
}

/// Makes a body that is one tensor, without any JSON, into samples of the model's own size.
pub fn raw_input(bytes: Vec<u8>, contract: &InputContract) -> Tensor {
    let each = contract.sample_bytes().max(1);
    let count = (bytes.len() / each) as u64;
    let (name, datatype, sample) = match *contract {
        InputContract::Images { height, width, .. } => {
            ("images", "UINT8", vec![height as u64, width as u64, 3])
        }
        InputContract::Clouds { points, .. } => ("points", "FP32", vec![points as u64, 3]),
    };
    Tensor {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape: [vec![count], sample].concat(),
        base64: false,
        values: Values::Raw(bytes),
    }
}

fn names(contract: &InputContract) -> &'static str {
    match contract {
        InputContract::Images { .. } => "`images`, `files`, `pixel_values`",
        InputContract::Clouds { .. } => "`points`",
    }
}

/// RGB bytes `[n, height, width, 3]`, scaled and cut to the model's size where they have another.
fn images(input: Tensor, size: (usize, usize), limits: &Limits) -> Result<Images, Refusal> {
    input.check_datatype("UINT8")?;
    let shape = input.check_shape(&[None, None, None, Some(3)], limits.body)?;
    let (height, width) = (shape[1], shape[2]);
    let refused = input.clone_without_values();
    let pixels = input.into_bytes(shape.iter().product())?;
    if (height, width) == size {
        return Ok(Images {
            height,
            width,
            pixels,
        });
    }
    let side = square(size)
        .map_err(|problem| refused.wrong(&format!("{problem}, found {width} x {height} pixels")))?;
    let fitted = pixels.chunks_exact(3 * height * width).map(|pixels| {
        let picture = Picture::new(height, width, pixels.to_vec());
        picture
            .map(|picture| picture.fit(side))
            .map_err(|error| refused.wrong(&error.to_string()))
    });
    let pixels = fitted.collect::<Result<Vec<_>, _>>()?.concat();
    Ok(Images {
        height: size.0,
        width: size.1,
        pixels,
    })
}

/// PNG and JPEG files, `[n]`.
fn files(input: Tensor, size: (usize, usize), limits: &Limits) -> Result<Images, Refusal> {
    input.check_datatype("BYTES")?;
    let count = input.check_shape(&[None], limits.samples)?[0];
    let (refused, base64) = (input.clone_without_values(), input.base64);
    let written = matches!(input.values, Values::Texts(_));
    let side = square(size).map_err(|problem| refused.wrong(&problem))?;
    let mut pixels = Vec::with_capacity(count * 3 * side * side);
    for (index, file) in input.into_texts(count)?.into_iter().enumerate() {
        let file = if base64 {
            let decoded = STANDARD.decode(&file);
            decoded
                .map_err(|error| refused.wrong(&format!("file {index} is no base64: {error}")))?
        } else {
            file
        };
        let picture = Picture::decode(&file, &limits.picture).map_err(|error| {
            // Bytes of a file are seldom text; who sends them as JSON has to write them otherwise.
            let hint = if written && !base64 {
                "; in JSON, write files in base64 and set the input's parameter `content_type` to `base64`"
            } else {
                ""
            };
            refused.wrong(&format!("file {index}: {error}{hint}"))
        })?;
        pixels.extend(picture.fit(side));
    }
    Ok(Images {
        height: side,
        width: side,
        pixels,
    })
}

/// Pixels that the client has normalised, `[n, 3, height, width]`, taken back to bytes.
fn pixel_values(
    input: Tensor,
    (height, width): (usize, usize),
    (mean, std): (&[f32; 3], &[f32; 3]),
    limits: &Limits,
) -> Result<Images, Refusal> {
    input.check_datatype("FP32")?;
    let shape = [None, Some(3), Some(height), Some(width)];
    let shape = input.check_shape(&shape, limits.body / 4)?;
    let refused = input.clone_without_values();
    let values = input.into_floats(shape.iter().product())?;
    let plane = height * width;
    let mut pixels = vec![0; values.len()];
    for (at, &value) in values.iter().enumerate() {
        let (image, channel, place) = (at / (3 * plane), at / plane % 3, at % plane);
        let level = value * std[channel] + mean[channel];
        // Written so that a value that is not a number is refused too.
        if !(-PIXEL_TOLERANCE..=1.0 + PIXEL_TOLERANCE).contains(&level) {
            return Err(refused.wrong(&format!(
                "image {image}, channel {channel} has {value}, which is {level} of full brightness; expected `(x / 255 - mean) / std` \
                 with mean {mean:?} and std {std:?}"
            )));
        }
        pixels[3 * (image * plane + place) + channel] = (255.0 * level).round() as u8;
    }
    Ok(Images {
        height,
        width,
        pixels,
    })
}

/// Coordinates `[n, points, 3]`. Clouds of different requests are learned from together, hence one number of points.
fn clouds(input: Tensor, points: usize, limits: &Limits) -> Result<Clouds, Refusal> {
    input.check_datatype("FP32")?;
    let shape = input.check_shape(&[None, Some(points), Some(3)], limits.body / 4)?;
    let refused = input.clone_without_values();
    let values = input.into_floats(shape.iter().product())?;
    if let Some(at) = values.iter().position(|value| !value.is_finite()) {
        let (cloud, point) = (at / (3 * points), at / 3 % points);
        return Err(refused.wrong(&format!(
            "point {point} of cloud {cloud} is {}, expected finite coordinates",
            values[at]
        )));
    }
    Ok(Clouds { points, values })
}

/// Returns the side of the model's images, which have to be square if others are to be cut to them.
fn square((height, width): (usize, usize)) -> Result<usize, String> {
    if height == width {
        return Ok(height);
    }
    Err(format!(
        "expected images of {width} x {height} pixels, to which no others are cut because they are not square"
    ))
}

impl Tensor {
    /// Copies what messages name, without the values.
    fn clone_without_values(&self) -> Self {
        Self {
            name: self.name.clone(),
            datatype: self.datatype.clone(),
            shape: self.shape.clone(),
            base64: self.base64,
            values: Values::Raw(Vec::new()),
        }
    }
}
