//! Durations and sizes as people write them.

/// Serialises durations as `60s`.
pub mod duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    /// Reads `250ms`, `60s`, `5m` or `2h`.
    pub fn parse(text: &str) -> Option<Duration> {
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, unit) = text.split_at(digits);
        let seconds = match unit.trim() {
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        let number: f64 = number.parse().ok()?;
        Duration::try_from_secs_f64(number * seconds).ok()
    }

    pub fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format!("{}ms", value.as_millis()))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(from)?;
        parse(&text).ok_or_else(|| {
            serde::de::Error::custom(format!(
                "expected a duration such as `250ms`, `60s`, `5m` or `2h`, found `{text}`"
            ))
        })
    }
}

/// Serialises sizes as `2GB`.
pub mod bytes {
    use serde::{Deserialize, Deserializer, Serializer};

    /// Reads `500kB`, `64MB` or `2GB`.
    pub fn parse(text: &str) -> Option<u64> {
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, unit) = text.split_at(digits);
        let factor = match unit.trim() {
            "B" => 1.0,
            "kB" => 1e3,
            "MB" => 1e6,
            "GB" => 1e9,
            "TB" => 1e12,
            _ => return None,
        };
        let number: f64 = number.parse().ok()?;
        Some((number * factor) as u64)
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
    pub fn serialize<S: Serializer>(value: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format!("{value}B"))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let text = String::deserialize(from)?;
        parse(&text).ok_or_else(|| {
            serde::de::Error::custom(format!(
                "expected a size such as `500kB`, `64MB` or `2GB`, found `{text}`"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{bytes, duration};

    #[test]
    fn amounts_are_read_as_people_write_them() {
        assert_eq!(duration::parse("60s"), Some(Duration::from_mins(1)));
        assert_eq!(duration::parse("1.5 m"), Some(Duration::from_secs(90)));
        assert_eq!(duration::parse("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(bytes::parse("2GB"), Some(2_000_000_000));
        assert_eq!(bytes::parse("64 kB"), Some(64_000));
        for wrong in ["", "60", "s", "-1s", "1d", "1..2s"] {
            assert_eq!(duration::parse(wrong), None, "{wrong}");
        }
        for wrong in ["", "2", "GB", "2gb", "-2GB"] {
            assert_eq!(bytes::parse(wrong), None, "{wrong}");
        }
    }
}
