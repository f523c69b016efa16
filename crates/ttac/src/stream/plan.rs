use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Domain, StreamConfig, invalid_if_any};
use crate::data::SampleId;
use crate::{Error, Result, write_atomically};

/// One sample that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "(usize, SampleId)", into = "(usize, SampleId)")]
pub struct Arrival {
    /// Position of its domain in [`Domains::list`](super::Domains::list).
    pub domain: usize,
    /// Its id in the domain's data set.
    pub id: SampleId,
}

impl From<(usize, SampleId)> for Arrival {
    fn from((domain, id): (usize, SampleId)) -> Self {
        Self { domain, id }
    }
}

impl From<Arrival> for (usize, SampleId) {
    fn from(arrival: Arrival) -> Self {
        (arrival.domain, arrival.id)
    }
}

/// A stream laid out: what arrives, batch by batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamPlan {
    /// What was asked for.
    pub config: StreamConfig,
    /// How many batches each visit has, in the order of the visits.
    pub visits: Vec<usize>,
    /// What arrives.
    pub batches: Vec<Vec<Arrival>>,
}

impl StreamPlan {
    /// Returns the domains, by [`Arrival::domain`].
    pub fn domains(&self) -> Vec<Domain> {
        self.config.domains.list()
    }

    /// Returns how many samples arrive in all.
    pub fn samples(&self) -> usize {
        self.batches.iter().map(Vec::len).sum()
    }

    /// Iterates over the batches of every visit.
    pub fn by_visit(&self) -> impl Iterator<Item = &[Vec<Arrival>]> {
        let mut rest = self.batches.as_slice();
        self.visits.iter().map(move |&count| {
            let (visit, later) = rest.split_at(count);
            rest = later;
            visit
        })
    }

    /// BLAKE3 of what arrives, as hexadecimal digits: the domains by name, and for every batch its
    /// samples. Plans with the same digest bring the same samples in the same order.
    pub fn digest(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        let mut number = |value: u64| {
            hasher.update(&value.to_le_bytes());
        };
        number(self.visits.len() as u64);
        self.visits.iter().for_each(|&count| number(count as u64));
        for batch in &self.batches {
            number(batch.len() as u64);
            for arrival in batch {
                number(arrival.domain as u64);
                number(arrival.id);
            }
        }
        for domain in self.domains() {
            hasher.update(domain.to_string().as_bytes());
            hasher.update(b"\n");
        }
        hasher.finalize().to_hex().to_string()
    }

    /// Whether the plan can be run on data sets of these sizes, one for every domain. A plan that
    /// was read from a file may not fit; the error lists everything that is wrong.
    pub fn check(&self, sizes: &[usize]) -> Result<()> {
        let domains = self.domains();
        let mut problems = Vec::new();
        if sizes.len() != domains.len() {
            let (planned, found) = (domains.len(), sizes.len());
            problems.push(format!(
                "expected {planned} domains as in the plan, found {found}"
            ));
        }
        let counted: usize = self
            .visits
            .iter()
            .fold(0, |sum, &count| sum.saturating_add(count));
        if counted != self.batches.len() {
            let found = self.batches.len();
            problems.push(format!(
                "expected {counted} batches by its visits, found {found}"
            ));
        }
        for (index, batch) in self.batches.iter().enumerate() {
            if batch.is_empty() {
                problems.push(format!("batch {index} is empty"));
            }
            let size = |arrival: &Arrival| sizes.get(arrival.domain).copied().unwrap_or(0);
            let stray = batch
                .iter()
                .find(|arrival| arrival.id >= size(arrival) as SampleId);
            if let Some(arrival) = stray {
                problems.push(format!(
                    "batch {index} asks for sample {} of domain {}, which has {}",
                    arrival.id,
                    arrival.domain,
                    size(arrival)
                ));
            }
        }
        invalid_if_any(&problems)
    }

    /// Writes the plan as JSON.
    pub fn save(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_vec(self).expect("a plan is made of numbers and names");
        write_atomically(path, &text)
    }

    /// Reads a plan that [`save`](Self::save) wrote.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read(path).map_err(Error::io("read", path))?;
        serde_json::from_slice(&text).map_err(|e| Error::Format {
            path: path.to_owned(),
            expected: "a stream plan",
            problem: e.to_string(),
            hint: None,
        })
    }
}

impl fmt::Display for StreamPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 20;
        let plural = |count: usize, one: &str| match (count, one) {
            (1, _) => format!("1 {one}"),
            (_, "batch") => format!("{count} batches"),
            _ => format!("{count} {one}s"),
        };
        write!(
            f,
            "{} in {} of up to {}, {}, seed {}, digest {:.12}",
            plural(self.samples(), "sample"),
            plural(self.batches.len(), "batch"),
            self.config.batch_size,
            self.config.order,
            self.config.seed,
            self.digest()
        )?;
        let domains = self.domains();
        for visit in self.by_visit().take(SHOWN) {
            let mut members: Vec<usize> = visit
                .iter()
                .flatten()
                .map(|arrival| arrival.domain)
                .collect();
            let samples = members.len();
            members.sort_unstable();
            members.dedup();
            let names: Vec<String> = members
                .iter()
                .map(|&domain| domains[domain].to_string())
                .collect();
            write!(f, "\n  {}: {}", names.join(", "), plural(samples, "sample"))?;
        }
        if self.visits.len() > SHOWN {
            write!(
                f,
                "\n  and {}",
                plural(self.visits.len() - SHOWN, "more visit")
            )?;
        }
        Ok(())
    }
}
