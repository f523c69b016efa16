use std::fmt;
use std::str::FromStr;

use crate::Error;

/// How strong a corruption is, from 1 (mildest) to 5.
///
/// ```
/// use ttac_corrupt::Severity;
///
/// assert_eq!(Severity::try_from(3)?.get(), 3);
/// assert_eq!("5".parse::<Severity>()?, Severity::STRONGEST);
/// assert!(Severity::try_from(6).is_err());
/// # Ok::<(), ttac_corrupt::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Severity(u8);

impl Severity {
    /// All severities, from 1 to 5.
    pub const ALL: [Self; 5] = [Self(1), Self(2), Self(3), Self(4), Self(5)];

    /// Severity 5, at which results are usually reported.
    pub const STRONGEST: Self = Self(5);

    /// Returns the severity as a number from 1 to 5.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Returns the position in a parameter table, from 0 to 4.
    pub(crate) fn index(self) -> usize {
        usize::from(self.0 - 1)
    }
}

impl TryFrom<u8> for Severity {
    type Error = Error;

    fn try_from(severity: u8) -> Result<Self, Error> {
        match severity {
            1..=5 => Ok(Self(severity)),
            _ => Err(Error::SeverityOutOfRange {
                found: severity.to_string(),
            }),
        }
    }
}

impl From<Severity> for u8 {
    fn from(severity: Severity) -> Self {
        severity.0
    }
}

impl FromStr for Severity {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let out_of_range = || Error::SeverityOutOfRange {
            found: text.to_owned(),
        };
        text.parse::<u8>().map_err(|_| out_of_range())?.try_into()
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}
