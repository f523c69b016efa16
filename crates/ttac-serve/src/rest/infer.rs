//! Predictions over HTTP.

use std::sync::Arc;
use std::time::Instant;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::Response;

use super::models::{Parts, part};
use crate::api::{Lane, ModelInfo};
use crate::failure::Failure;
use crate::front::Front;
use crate::inference::{admit, answer};
use crate::oip::{self, Encoding, InferRequest, TooMuch, WantedOutput};
use crate::tokens::Caller;

/// Says how many bytes of a body are JSON.
const JSON_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");

/// Names the stream for clients that cannot set parameters.
const STREAM: HeaderName = HeaderName::from_static("ttac-stream");

pub async fn infer(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
    Path(parts): Parts,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let begun = Instant::now();
    // An unknown model is said before the body is read, as Triton does it.
    let name = part(&parts, "model").unwrap_or_default();
    let (model, lane) = admit(&front, &caller, name, part(&parts, "version"))?;
    let length = text(&headers, &header::CONTENT_LENGTH).and_then(|length| length.parse().ok());
    let room = front.room(length).await?;
    let body = front.body(body).await?;
    let asked = Asked {
        front: front.clone(),
        caller,
        model,
        lane,
        headers,
        begun,
    };
    let done = front.predict(move || {
        let result = asked.answer(body);
        drop(room);
        result
    });
    done.await
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap_or("?"))
}

/// A request whose body has come.
struct Asked {
    front: Arc<Front>,
    caller: Caller,
    model: ModelInfo,
    lane: Option<Lane>,
    headers: HeaderMap,
    begun: Instant,
}

impl Asked {
    /// Decodes, predicts and encodes, which takes a thread that may wait.
    fn answer(&self, body: Vec<u8>) -> Result<Response, Failure> {
        let request = self.read(body)?;
        let header = text(&self.headers, &STREAM);
        let model = &self.model;
        let answer = answer(
            &self.front,
            &self.caller,
            (model, self.lane),
            (request, header),
            self.begun,
        )?;
        let encoded = oip::encode(
            &model.name,
            answer.version,
            answer.id.as_deref(),
            &answer.parameters,
            &answer.tensors,
        );
        let accepted = text(&self.headers, &header::ACCEPT_ENCODING);
        let encoding = Encoding::accepted(accepted);
        let mut response = Response::new(Body::from(oip::compress(encoding, encoded.body)));
        let headers = response.headers_mut();
        let content = if encoded.json_length.is_some() {
            "application/octet-stream"
        } else {
            "application/json"
        };
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content));
        if let Some(length) = encoded.json_length {
            headers.insert(JSON_LENGTH, HeaderValue::from(length));
        }
        if let Some(name) = encoding.name() {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(name));
        }
        Ok(response)
    }

    fn read(&self, body: Vec<u8>) -> Result<InferRequest, Failure> {
        let limit = self.front.limits.body;
        let encoding = Encoding::of_body(text(&self.headers, &header::CONTENT_ENCODING))?;
        let body = oip::decompress(encoding, body, limit).map_err(|error| match error {
            TooMuch::Large => self.front.too_large(),
            TooMuch::Damaged(refusal) => refusal.into(),
        })?;
        let (json, binary) = oip::split(text(&self.headers, &JSON_LENGTH), &body)?;
        if json.is_empty() && text(&self.headers, &JSON_LENGTH).is_some() {
            let inputs = vec![oip::raw_input(binary.to_vec(), &self.model.input)];
            let outputs: Vec<WantedOutput> = Vec::new();
            return Ok(InferRequest::new(
                None,
                &oip::Parameters::new(),
                inputs,
                outputs,
            )?);
        }
        Ok(oip::read_request(json, binary)?)
    }
}
