use std::fmt;

use serde::{Deserialize, Serialize};

/// Images of one kind, by name: a data set, and what was done to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Domain {
    /// The data set, as on the command line.
    pub data: String,
    /// The corruption, if the images are corrupted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub corruption: Option<String>,
    /// Its severity, 1 to 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub severity: Option<u8>,
}

impl Domain {
    /// Names a data set as it is.
    pub fn clean(data: &str) -> Self {
        Self {
            data: data.to_owned(),
            corruption: None,
            severity: None,
        }
    }

    /// Names a data set under a corruption.
    pub fn corrupted(data: &str, corruption: &str, severity: u8) -> Self {
        Self {
            data: data.to_owned(),
            corruption: Some(corruption.to_owned()),
            severity: Some(severity),
        }
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.data.is_empty() {
            problems.push("a domain names no data set".to_owned());
        }
        match (&self.corruption, self.severity) {
            (None, None) | (Some(_), Some(1..=5)) => {}
            (Some(name), None) => problems.push(format!(
                "domain `{self}`: corruption `{name}` needs a severity from 1 to 5"
            )),
            (None, Some(severity)) => problems.push(format!(
                "domain `{self}`: severity {severity} without a corruption"
            )),
            (Some(_), Some(severity)) => problems.push(format!(
                "domain `{self}`: expected a severity from 1 to 5, found {severity}"
            )),
        }
        problems
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.data)?;
        if let Some(corruption) = &self.corruption {
            write!(f, " {corruption}")?;
        }
        if let Some(severity) = self.severity {
            write!(f, " {severity}")?;
        }
        Ok(())
    }
}

/// Which domains a stream visits, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Domains {
    /// One domain, once.
    One {
        /// The domain.
        domain: Domain,
    },
    /// One domain after the other: continual adaptation.
    Sequence {
        /// The domains in their order.
        domains: Vec<Domain>,
    },
    /// Every corruption at severities 1, 2, 3, 4, 5, 4, 3, 2, 1, one after the other.
    Gradual {
        /// The data set.
        data: String,
        /// The corruptions in their order.
        corruptions: Vec<String>,
    },
    /// All domains at once.
    Mixed {
        /// The domains.
        domains: Vec<Domain>,
    },
    /// A sequence that comes back.
    Recurring {
        /// The domains in their order.
        domains: Vec<Domain>,
        /// How often the sequence is visited.
        times: usize,
    },
    /// A sequence that comes back, each time in pieces: one of the domains that are not used up brings a random number of its batches, then
    /// another one, until all are used up.
    Changing {
        /// The domains.
        domains: Vec<Domain>,
        /// How often all of them are used up.
        times: usize,
    },
}

/// The severities of a corruption that comes and goes.
const RISE_AND_FALL: [u8; 9] = [1, 2, 3, 4, 5, 4, 3, 2, 1];

impl Domains {
    /// Lists the different domains. [`Arrival::domain`](super::Arrival::domain) is a position in this list.
    pub fn list(&self) -> Vec<Domain> {
        match self {
            Self::One { domain } => vec![domain.clone()],
            Self::Sequence { domains }
            | Self::Mixed { domains }
            | Self::Recurring { domains, .. }
            | Self::Changing { domains, .. } => domains.clone(),
            Self::Gradual { data, corruptions } => corruptions
                .iter()
                .flat_map(|name| (1..=5).map(|severity| Domain::corrupted(data, name, severity)))
                .collect(),
        }
    }

    /// Lists the domains of every visit before any is cut into pieces, by their position in [`list`](Self::list).
    pub(super) fn visits(&self) -> Vec<Vec<usize>> {
        match self {
            Self::One { .. } => vec![vec![0]],
            Self::Sequence { domains } => (0..domains.len()).map(|domain| vec![domain]).collect(),
            Self::Mixed { domains } => vec![(0..domains.len()).collect()],
            Self::Recurring { domains, times } | Self::Changing { domains, times } => (0..*times)
                .flat_map(|_| (0..domains.len()).map(|domain| vec![domain]))
                .collect(),
            Self::Gradual { corruptions, .. } => (0..corruptions.len())
                .flat_map(|corruption| {
                    RISE_AND_FALL.map(|severity| vec![5 * corruption + usize::from(severity) - 1])
                })
                .collect(),
        }
    }

    pub(super) fn problems(&self) -> Vec<String> {
        let domains = self.list();
        let mut problems: Vec<String> = domains.iter().flat_map(Domain::problems).collect();
        if domains.is_empty() {
            problems.push("the list of domains is empty".to_owned());
        }
        for (position, domain) in domains.iter().enumerate() {
            if domains[..position].contains(domain) {
                problems.push(format!(
                    "domain `{domain}` is listed twice (`recurring` visits domains again)"
                ));
            }
        }
        if let Self::Recurring { times: 0, .. } | Self::Changing { times: 0, .. } = self {
            problems.push("`times`: expected at least 1, found 0".to_owned());
        }
        problems
    }
}
