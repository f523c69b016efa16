//! Streams as data: which sample of which domain arrives in which batch.
//!
//! A [`StreamConfig`] says what kind of stream is wanted, [`StreamConfig::plan`] makes a [`StreamPlan`]
//! of it: a list of batches that can be printed, saved, compared by [digest](StreamPlan::digest) and
//! run again. A plan names samples and never holds them; labels are read to order a stream and are
//! not kept.
//!
//! A *visit* is one walk over a domain, or over a mixture of domains. It brings every chosen sample
//! once, in batches of one size; its last batch may be smaller, and no batch reaches over its end.
//!
//! ```
//! use ttac::stream::{Domain, Domains, StreamConfig};
//!
//! let snow = Domain::corrupted("shapes10", "snow", 5);
//! let config = StreamConfig::new(Domains::One { domain: snow }).with_batch_size(4);
//! let labels = [0, 1, 0, 1, 0, 1, 0, 1, 0, 1];
//! let plan = config.plan(&[&labels], 2)?;
//! let sizes: Vec<usize> = plan.batches.iter().map(Vec::len).collect();
//! assert_eq!(sizes, [4, 4, 2]);
//! assert_eq!(plan, config.plan(&[&labels], 2)?);
//! # Ok::<(), ttac::Error>(())
//! ```

use std::fmt;
use std::path::Path;

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::Gamma;
use serde::{Deserialize, Serialize};

use crate::data::SampleId;
use crate::{Error, Result, write_atomically};

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
    /// A data set as it is.
    pub fn clean(data: &str) -> Self {
        Self {
            data: data.to_owned(),
            corruption: None,
            severity: None,
        }
    }

    /// A data set under a corruption.
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
}

/// The severities of a corruption that comes and goes.
const RISE_AND_FALL: [u8; 9] = [1, 2, 3, 4, 5, 4, 3, 2, 1];

impl Domains {
    /// The different domains. [`Arrival::domain`] is a position in this list.
    pub fn list(&self) -> Vec<Domain> {
        match self {
            Self::One { domain } => vec![domain.clone()],
            Self::Sequence { domains } | Self::Mixed { domains } | Self::Recurring { domains, .. } => {
                domains.clone()
            }
            Self::Gradual { data, corruptions } => corruptions
                .iter()
                .flat_map(|name| (1..=5).map(|severity| Domain::corrupted(data, name, severity)))
                .collect(),
        }
    }

    /// The domains of every visit, by their position in [`list`](Self::list).
    fn visits(&self) -> Vec<Vec<usize>> {
        match self {
            Self::One { .. } => vec![vec![0]],
            Self::Sequence { domains } => (0..domains.len()).map(|domain| vec![domain]).collect(),
            Self::Mixed { domains } => vec![(0..domains.len()).collect()],
            Self::Recurring { domains, times } => (0..*times)
                .flat_map(|_| (0..domains.len()).map(|domain| vec![domain]))
                .collect(),
            Self::Gradual { corruptions, .. } => (0..corruptions.len())
                .flat_map(|corruption| {
                    RISE_AND_FALL.map(|severity| vec![5 * corruption + usize::from(severity) - 1])
                })
                .collect(),
        }
    }

    fn problems(&self) -> Vec<String> {
        let domains = self.list();
        let mut problems: Vec<String> = domains.iter().flat_map(Domain::problems).collect();
        if domains.is_empty() {
            problems.push("the list of domains is empty".to_owned());
        }
        for (position, domain) in domains.iter().enumerate() {
            if domains[..position].contains(domain) {
                problems.push(format!(
                    "domain `{domain}` is listed twice; `recurring` visits domains again"
                ));
            }
        }
        if matches!(self, Self::Recurring { times: 0, .. }) {
            problems.push("`times`: expected at least 1, found 0".to_owned());
        }
        problems
    }
}

/// In which order the samples of a visit arrive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Order {
    /// As in the data set; domains that are mixed take turns.
    InOrder {},
    /// In a random order.
    #[default]
    #[serde(rename = "shuffled", alias = "random")]
    Shuffled,
    /// Classes come and go. The visit is cut into slots; for every class, a draw from a symmetric
    /// Dirichlet distribution says which share of its samples falls into which slot. The smaller the
    /// concentration, the longer a class stays: at 10 the slots are much alike, at 0.1 most samples
    /// of a class fall into one or two.
    Correlated {
        /// Concentration of the Dirichlet distribution, 0.001 to 1,000,000.
        concentration: f64,
        /// How many slots; as many as classes if not given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        slots: Option<usize>,
        /// The order within a slot.
        #[serde(default)]
        within: Within,
    },
    /// Classes in other proportions than in the data set, in a random order: the largest part of the
    /// data that has these proportions, or the [`Subset`]'s count of it.
    LabelShift {
        /// The proportions, the same in every visit.
        proportions: Proportions,
    },
}

/// The order within a slot of a correlated stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Within {
    /// Class after class, as published for temporally correlated streams.
    #[default]
    Runs,
    /// At random.
    Shuffled,
}

/// Proportions of the classes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Proportions {
    /// One number for every class; their sum is 1.
    Given(Vec<f64>),
    /// Drawn from a symmetric Dirichlet distribution of this concentration.
    Dirichlet(f64),
}

impl Order {
    fn problems(&self) -> Vec<String> {
        let concentration = |value: f64| {
            let fits = (1e-3..=1e6).contains(&value);
            let problem = || {
                format!("`concentration`: expected a number from 0.001 to 1000000, found {value}")
            };
            (!fits).then(problem)
        };
        match self {
            Self::InOrder {} | Self::Shuffled => Vec::new(),
            Self::Correlated {
                concentration: value,
                slots,
                ..
            } => {
                let none = (*slots == Some(0)).then(|| "`slots`: expected at least 1, found 0".to_owned());
                concentration(*value).into_iter().chain(none).collect()
            }
            Self::LabelShift {
                proportions: Proportions::Dirichlet(value),
            } => concentration(*value).into_iter().collect(),
            Self::LabelShift {
                proportions: Proportions::Given(values),
            } => {
                let mut problems = Vec::new();
                for (class, value) in values.iter().enumerate() {
                    if !(0.0..=1.0).contains(value) {
                        problems.push(format!(
                            "proportion of class {class}: expected a number from 0 to 1, found {value}"
                        ));
                    }
                }
                let sum: f64 = values.iter().sum();
                if problems.is_empty() && (sum - 1.0).abs() > 1e-6 {
                    problems.push(format!("proportions: expected a sum of 1, found {sum}"));
                }
                problems
            }
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InOrder {} => f.write_str("in order"),
            Self::Shuffled => f.write_str("shuffled"),
            Self::Correlated { concentration, .. } => {
                write!(f, "correlated (concentration {concentration})")
            }
            Self::LabelShift { .. } => f.write_str("label shift, shuffled"),
        }
    }
}

/// A part of every domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subset {
    /// How many samples of every domain.
    pub count: usize,
    /// Which ones.
    #[serde(default)]
    pub choose: Choose,
}

/// How a subset is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Choose {
    /// The first ones of the data set, as `ttac eval --subset` does.
    #[default]
    First,
    /// At random, the same ones in every domain of the same size. For data sets sorted by class.
    Random,
}

/// What kind of stream is wanted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct StreamConfig {
    /// Where the samples come from.
    pub domains: Domains,
    /// In which order they arrive.
    #[serde(default)]
    pub order: Order,
    /// How many arrive at a time.
    #[serde(default = "default_batch_size")]
    pub batch_size: usize,
    /// A part of every domain instead of all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subset: Option<Subset>,
    /// Seed of everything random.
    #[serde(default)]
    pub seed: u64,
}

fn default_batch_size() -> usize {
    256
}

impl StreamConfig {
    /// All samples of the domains, shuffled with seed 0, in batches of 256.
    pub fn new(domains: Domains) -> Self {
        Self {
            domains,
            order: Order::default(),
            batch_size: default_batch_size(),
            subset: None,
            seed: 0,
        }
    }

    /// Another order.
    pub fn with_order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Another batch size.
    pub fn with_batch_size(mut self, batch_size: usize) -> Self {
        self.batch_size = batch_size;
        self
    }

    /// A part of every domain.
    pub fn with_subset(mut self, count: usize, choose: Choose) -> Self {
        self.subset = Some(Subset { count, choose });
        self
    }

    /// Another seed.
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Whether there can be such a stream; the error lists everything that is wrong.
    pub fn validate(&self) -> Result<()> {
        let mut problems = self.domains.problems();
        problems.extend(self.order.problems());
        if self.batch_size == 0 {
            problems.push("`batch-size`: expected at least 1, found 0".to_owned());
        }
        if self.subset.is_some_and(|subset| subset.count == 0) {
            problems.push("`subset`: expected a count of at least 1, found 0".to_owned());
        }
        invalid_if_any(&problems)
    }

    /// Lays out the stream. `labels[d][i]` is the class of sample `i` of domain `d` of
    /// [`Domains::list`].
    ///
    /// # Panics
    /// If a label is not below `num_classes`.
    pub fn plan(&self, labels: &[&[usize]], num_classes: usize) -> Result<StreamPlan> {
        self.validate()?;
        let domains = self.domains.list();
        if labels.len() != domains.len() {
            return Err(Error::Mismatch {
                what: "labels of a stream".to_owned(),
                expected: format!("{} lists, one for every domain", domains.len()),
                found: labels.len().to_string(),
            });
        }
        let proportions = self.proportions(num_classes)?;
        let mut problems = Vec::new();
        let mut chosen = Vec::with_capacity(domains.len());
        for (domain, labels) in domains.iter().zip(labels) {
            let ids = match &proportions {
                Some(proportions) => self.with_proportions(proportions, labels),
                None => self.any(labels.len()),
            };
            match ids {
                Ok(ids) => chosen.push(ids),
                Err(problem) => problems.push(format!("domain `{domain}`: {problem}")),
            }
        }
        invalid_if_any(&problems)?;

        let mut batches = Vec::new();
        let mut visits = Vec::new();
        for (visit, members) in self.domains.visits().iter().enumerate() {
            let mut generator = generator(self.seed, Purpose::Order, visit);
            let arrivals = take_turns(members, &chosen);
            let arrivals = self.ordered(arrivals, labels, num_classes, &mut generator);
            visits.push(arrivals.len().div_ceil(self.batch_size));
            batches.extend(arrivals.chunks(self.batch_size).map(<[Arrival]>::to_vec));
        }
        Ok(StreamPlan {
            config: self.clone(),
            visits,
            batches,
        })
    }

    /// The proportions of the classes, where the order asks for some.
    fn proportions(&self, num_classes: usize) -> Result<Option<Vec<f64>>> {
        let Order::LabelShift { proportions } = &self.order else {
            return Ok(None);
        };
        match proportions {
            Proportions::Dirichlet(concentration) => {
                let mut generator = generator(self.seed, Purpose::Proportions, 0);
                Ok(Some(dirichlet(*concentration, num_classes, &mut generator)))
            }
            Proportions::Given(values) if values.len() != num_classes => Err(Error::Mismatch {
                what: "proportions of a stream".to_owned(),
                expected: format!("{num_classes}, one for every class"),
                found: values.len().to_string(),
            }),
            Proportions::Given(values) => Ok(Some(values.clone())),
        }
    }

    /// Ids of a domain in ascending order, whatever their classes.
    fn any(&self, available: usize) -> Result<Vec<SampleId>, String> {
        let mut ids: Vec<SampleId> = (0..available as SampleId).collect();
        let Some(subset) = self.subset else {
            return if ids.is_empty() { Err("it has no samples".to_owned()) } else { Ok(ids) };
        };
        if subset.count > available {
            return Err(format!(
                "`subset`: expected at most its {available} samples, found {}",
                subset.count
            ));
        }
        if subset.choose == Choose::Random {
            shuffle(&mut ids, &mut generator(self.seed, Purpose::Subset, 0));
        }
        ids.truncate(subset.count);
        ids.sort_unstable();
        Ok(ids)
    }

    /// Ids of a domain in ascending order, with the classes in the given proportions.
    fn with_proportions(
        &self,
        proportions: &[f64],
        labels: &[usize],
    ) -> Result<Vec<SampleId>, String> {
        let mut classes = vec![Vec::new(); proportions.len()];
        for (id, &label) in labels.iter().enumerate() {
            classes[label].push(id as SampleId);
        }
        let mut random = generator(self.seed, Purpose::Subset, 0);
        if self.subset.is_none_or(|subset| subset.choose == Choose::Random) {
            classes.iter_mut().for_each(|ids| shuffle(ids, &mut random));
        }
        let available: Vec<usize> = classes.iter().map(Vec::len).collect();
        // The most that leaves every class enough; rounding may ask for one too many of a class.
        let bound = available
            .iter()
            .zip(proportions)
            .filter(|(_, share)| **share > 0.0)
            .map(|(count, share)| *count as f64 / share + 1e-6)
            .fold(labels.len() as f64, f64::min);
        let enough = |total: &usize| {
            let counts = apportion(*total, proportions);
            counts.iter().zip(&available).all(|(needed, count)| needed <= count)
        };
        let most = (0..=bound as usize).rev().find(enough).unwrap_or(0);
        let total = self.subset.map_or(most, |subset| subset.count);
        if total > most {
            return Err(format!(
                "`subset`: expected at most the {most} samples that these proportions leave, found {total}"
            ));
        }
        if total == 0 {
            return Err("no sample is left by these proportions".to_owned());
        }
        let counts = apportion(total, proportions);
        for (ids, count) in classes.iter_mut().zip(counts) {
            ids.truncate(count);
        }
        let mut ids = classes.concat();
        ids.sort_unstable();
        Ok(ids)
    }

    fn ordered(
        &self,
        mut arrivals: Vec<Arrival>,
        labels: &[&[usize]],
        num_classes: usize,
        generator: &mut ChaCha8Rng,
    ) -> Vec<Arrival> {
        match &self.order {
            Order::InOrder {} => arrivals,
            Order::Shuffled | Order::LabelShift { .. } => {
                shuffle(&mut arrivals, generator);
                arrivals
            }
            Order::Correlated {
                concentration,
                slots,
                within,
            } => {
                shuffle(&mut arrivals, generator);
                let mut classes = vec![Vec::new(); num_classes];
                for arrival in arrivals {
                    classes[labels[arrival.domain][arrival.id as usize]].push(arrival);
                }
                let slots = slots.unwrap_or(num_classes);
                correlated(&classes, *concentration, slots, *within, generator)
            }
        }
    }
}

fn invalid_if_any(problems: &[String]) -> Result<()> {
    if problems.is_empty() {
        return Ok(());
    }
    Err(Error::Invalid {
        what: "stream",
        problem: problems.join("; "),
    })
}

/// Arrivals of a visit before they are ordered: the first sample of every domain, then the second.
fn take_turns(members: &[usize], chosen: &[Vec<SampleId>]) -> Vec<Arrival> {
    let longest = members.iter().map(|&domain| chosen[domain].len()).max();
    (0..longest.unwrap_or(0))
        .flat_map(|position| {
            members.iter().filter_map(move |&domain| {
                let &id = chosen[domain].get(position)?;
                Some(Arrival { domain, id })
            })
        })
        .collect()
}

/// `total` as whole numbers in proportion: rounded down, the rest to the largest remainders.
fn apportion(total: usize, proportions: &[f64]) -> Vec<usize> {
    let exact: Vec<f64> = proportions.iter().map(|share| share * total as f64).collect();
    let mut counts: Vec<usize> = exact.iter().map(|value| (value + 1e-9) as usize).collect();
    let mut by_remainder: Vec<usize> = (0..counts.len()).collect();
    let remainder = |class: usize| exact[class] - exact[class].floor();
    by_remainder.sort_by(|&a, &b| remainder(b).total_cmp(&remainder(a)));
    let given: usize = counts.iter().sum();
    let missing = total.saturating_sub(given);
    for &class in by_remainder.iter().filter(|&&class| proportions[class] > 0.0).take(missing) {
        counts[class] += 1;
    }
    counts
}

/// The samples of every class spread over the slots, slot after slot.
fn correlated(
    classes: &[Vec<Arrival>],
    concentration: f64,
    slots: usize,
    within: Within,
    generator: &mut ChaCha8Rng,
) -> Vec<Arrival> {
    // [slots][classes], each a run of one class
    let mut runs: Vec<Vec<&[Arrival]>> = vec![Vec::new(); slots];
    for arrivals in classes {
        let shares = dirichlet(concentration, slots, generator);
        let (mut sum, mut start) = (0.0, 0);
        for (slot, share) in shares.iter().enumerate() {
            sum += share;
            let last = slot + 1 == slots;
            let rounded = (sum * arrivals.len() as f64).round() as usize;
            let end = if last { arrivals.len() } else { rounded.clamp(start, arrivals.len()) };
            runs[slot].push(&arrivals[start..end]);
            start = end;
        }
    }
    let mut stream = Vec::new();
    for mut slot in runs {
        shuffle(&mut slot, generator);
        let mut arrivals = slot.concat();
        if within == Within::Shuffled {
            shuffle(&mut arrivals, generator);
        }
        stream.extend(arrivals);
    }
    stream
}

/// A draw from the symmetric Dirichlet distribution: gamma variates divided by their sum. They are
/// kept as logarithms, `ln G(a) = ln G(a + 1) + ln U / a`, since for small `a` most are nearly zero.
fn dirichlet(concentration: f64, count: usize, generator: &mut ChaCha8Rng) -> Vec<f64> {
    let gamma = Gamma::new(concentration + 1.0, 1.0).expect("the concentration was checked");
    let logarithms: Vec<f64> = (0..count)
        .map(|_| {
            let above_zero = 1.0 - generator.random::<f64>();
            generator.sample(gamma).ln() + above_zero.ln() / concentration
        })
        .collect();
    let largest = logarithms.iter().copied().fold(f64::MIN, f64::max);
    let weights: Vec<f64> = logarithms.iter().map(|log| (log - largest).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

/// What random numbers are for. Each purpose has a stream of its own, so that changing one choice
/// leaves the others as they were.
#[derive(Clone, Copy)]
enum Purpose {
    Order,
    Subset,
    Proportions,
}

fn generator(seed: u64, purpose: Purpose, index: usize) -> ChaCha8Rng {
    let mut key = *b"ttac stream plan, version 1.....";
    key[23] = purpose as u8;
    key[24..].copy_from_slice(&seed.to_le_bytes());
    let mut generator = ChaCha8Rng::from_seed(key);
    generator.set_stream(index as u64);
    generator
}

/// Fisher and Yates. Written out, because a plan must not change with the version of a dependency.
fn shuffle<T>(items: &mut [T], generator: &mut ChaCha8Rng) {
    for last in (1..items.len()).rev() {
        let wide = u128::from(generator.next_u64()) * (last as u128 + 1);
        items.swap(last, (wide >> 64) as usize);
    }
}

/// One sample that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "(usize, SampleId)", into = "(usize, SampleId)")]
pub struct Arrival {
    /// Position of its domain in [`Domains::list`].
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
    /// The domains, by [`Arrival::domain`].
    pub fn domains(&self) -> Vec<Domain> {
        self.config.domains.list()
    }

    /// How many samples arrive in all.
    pub fn samples(&self) -> usize {
        self.batches.iter().map(Vec::len).sum()
    }

    /// The batches of every visit.
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
            problems.push(format!("expected {planned} domains as in the plan, found {found}"));
        }
        let counted: usize = self.visits.iter().fold(0, |sum, &count| sum.saturating_add(count));
        if counted != self.batches.len() {
            let found = self.batches.len();
            problems.push(format!("expected {counted} batches by its visits, found {found}"));
        }
        for (index, batch) in self.batches.iter().enumerate() {
            if batch.is_empty() {
                problems.push(format!("batch {index} is empty"));
            }
            let size = |arrival: &Arrival| sizes.get(arrival.domain).copied().unwrap_or(0);
            let stray = batch.iter().find(|arrival| arrival.id >= size(arrival) as SampleId);
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
            let mut members: Vec<usize> = visit.iter().flatten().map(|arrival| arrival.domain).collect();
            let samples = members.len();
            members.sort_unstable();
            members.dedup();
            let names: Vec<String> = members.iter().map(|&domain| domains[domain].to_string()).collect();
            write!(f, "\n  {}: {}", names.join(", "), plural(samples, "sample"))?;
        }
        if self.visits.len() > SHOWN {
            write!(f, "\n  and {}", plural(self.visits.len() - SHOWN, "more visit"))?;
        }
        Ok(())
    }
}
