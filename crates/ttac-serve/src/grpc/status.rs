//! Failures as gRPC says them, and how long a client waits.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use crate::api::Refusal;
use crate::failure::Failure;

/// The status of HTTP that a status of gRPC was made of.
#[derive(Debug, thiserror::Error)]
#[error("HTTP {0}")]
struct OfHttp(u16);

impl From<Failure> for Status {
    fn from(failure: Failure) -> Self {
        let code = match failure.status {
            StatusCode::BAD_REQUEST => Code::InvalidArgument,
            StatusCode::UNAUTHORIZED => Code::Unauthenticated,
            StatusCode::FORBIDDEN => Code::PermissionDenied,
            StatusCode::NOT_FOUND => Code::NotFound,
            StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT => Code::DeadlineExceeded,
            StatusCode::PAYLOAD_TOO_LARGE | StatusCode::TOO_MANY_REQUESTS => {
                Code::ResourceExhausted
            }
            StatusCode::SERVICE_UNAVAILABLE => Code::Unavailable,
            _ => Code::Internal,
        };
        let mut status = Self::new(code, failure.text);
        status.set_source(Arc::new(OfHttp(failure.status.as_u16())));
        if let Some(after) = failure.retry_after {
            // Clients with a retry policy wait so long.
            let milliseconds = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
            let value = MetadataValue::from(milliseconds);
            status
                .metadata_mut()
                .insert("grpc-retry-pushback-ms", value);
        }
        status
    }
}

/// Says a refusal as gRPC does.
pub fn refused(refusal: Refusal) -> Status {
    Failure::from(refusal).into()
}

/// Returns the status that HTTP has for the same, by which all transports count: it tells more than the code.
pub fn of_http(status: &Status) -> u16 {
    let mut cause: Option<&(dyn Error + 'static)> = Some(status);
    while let Some(error) = cause {
        if let Some(OfHttp(status)) = error.downcast_ref() {
            return *status;
        }
        cause = error.source();
    }
    match status.code() {
        Code::Ok => 200,
        Code::Unimplemented => 404,
        _ => 500,
    }
}

/// Reads the header `grpc-timeout`: up to eight digits and a unit.
pub fn timeout(header: Option<&str>) -> Result<Option<Duration>, Status> {
    let Some(header) = header else {
        return Ok(None);
    };
    let wrong = || {
        refused(Refusal::Invalid(format!(
            "`grpc-timeout`: expected up to eight digits and one of H, M, S, m, u, n, found `{header}`"
        )))
    };
    let unit = header.chars().next_back().ok_or_else(wrong)?;
    let digits = &header[..header.len() - unit.len_utf8()];
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let timeout = match unit {
        'H' => Duration::from_secs(3600 * number),
        'M' => Duration::from_secs(60 * number),
        'S' => Duration::from_secs(number),
        'm' => Duration::from_millis(number),
        'u' => Duration::from_micros(number),
        'n' => Duration::from_nanos(number),
        _ => return Err(wrong()),
    };
    Ok(Some(timeout))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_limits_have_a_unit() {
        for (header, expected) in [
            ("1H", Duration::from_hours(1)),
            ("2M", Duration::from_mins(2)),
            ("30S", Duration::from_secs(30)),
            ("99999999m", Duration::from_millis(99_999_999)),
            ("5u", Duration::from_micros(5)),
            ("0n", Duration::ZERO),
        ] {
            assert_eq!(timeout(Some(header)).unwrap(), Some(expected), "{header}");
        }
        assert_eq!(timeout(None).unwrap(), None);
        for wrong in ["", "S", "5", "-1S", "1.5S", "123456789S", "1s", "1µ", "1 S"] {
            let status = timeout(Some(wrong)).unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument, "{wrong}");
            assert!(status.message().contains("`grpc-timeout`"), "{wrong}");
        }
    }

    #[test]
    fn what_is_not_there_is_no_fault() {
        assert_eq!(of_http(&Status::ok("")), 200);
        assert_eq!(of_http(&Status::unimplemented("")), 404);
        assert_eq!(of_http(&Status::internal("")), 500);
    }

    #[test]
    fn each_failure_has_a_code() {
        for (status, code) in [
            (400, Code::InvalidArgument),
            (401, Code::Unauthenticated),
            (403, Code::PermissionDenied),
            (404, Code::NotFound),
            (408, Code::DeadlineExceeded),
            (413, Code::ResourceExhausted),
            (429, Code::ResourceExhausted),
            (500, Code::Internal),
            (503, Code::Unavailable),
            (504, Code::DeadlineExceeded),
        ] {
            let failure = Failure::new(StatusCode::from_u16(status).unwrap(), "why");
            let said = Status::from(failure);
            assert_eq!((said.code(), said.message()), (code, "why"), "{status}");
            assert_eq!(of_http(&said), status);
            // It is found below others too.
            let mut other = Status::unknown("other");
            other.set_source(Arc::new(said));
            assert_eq!(of_http(&other), status);
        }
        let after = Duration::from_millis(1500);
        let quota = refused(Refusal::Quota {
            why: String::new(),
            after,
        });
        let wait = quota.metadata().get("grpc-retry-pushback-ms");
        assert_eq!(wait.unwrap(), "1500");
    }
}
