//! From a configuration to a plan.

use rand_chacha::ChaCha8Rng;

use super::orders::{by_class, chunked, correlated, dirichlet, in_pieces, prevailing};
use super::{
    Arrival, Choose, Domains, Order, Proportions, StreamConfig, StreamPlan, Within, invalid_if_any,
};
use crate::data::{Dataset, DatasetExt, SampleId};
use crate::rng::{Purpose, shuffle};
use crate::{Error, Result};

/// What a plan has to know about the samples of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Population<'a> {
    /// The class of every sample.
    Labelled(&'a [usize]),
    /// The number of samples, whose classes are not known. It is enough where the order does not need classes.
    Unlabelled(usize),
}

impl<'a> Population<'a> {
    fn len(self) -> usize {
        match self {
            Self::Labelled(labels) => labels.len(),
            Self::Unlabelled(count) => count,
        }
    }

    fn labels(self) -> Result<&'a [usize], String> {
        match self {
            Self::Labelled(labels) => Ok(labels),
            Self::Unlabelled(count) => Err(format!(
                "expected the class of every sample, which this order needs, found {count} samples without labels"
            )),
        }
    }
}

impl StreamConfig {
    /// Lays out the stream over data sets, one for every domain of [`Domains::list`](super::Domains::list). Their
    /// labels are asked for only where the order needs them.
    pub fn plan_for(&self, domains: &[Box<dyn Dataset>]) -> Result<StreamPlan> {
        let labels: Vec<Option<Vec<usize>>> = domains
            .iter()
            .map(|data| {
                if self.order.needs_labels() {
                    data.labels()
                } else {
                    Ok(None)
                }
            })
            .collect::<Result<_>>()?;
        let populations: Vec<Population<'_>> = domains
            .iter()
            .zip(&labels)
            .map(|(data, labels)| match labels {
                Some(labels) => Population::Labelled(labels),
                None => Population::Unlabelled(data.len()),
            })
            .collect();
        let classes = domains.first().map_or(0, |data| data.classes().len());
        self.plan(&populations, classes)
    }

    /// Lays out the stream over the samples of every domain of [`Domains::list`](super::Domains::list).
    ///
    /// # Panics
    /// If a label is not below `num_classes`.
    pub fn plan(&self, populations: &[Population<'_>], num_classes: usize) -> Result<StreamPlan> {
        self.validate()?;
        let domains = self.domains.list();
        if populations.len() != domains.len() {
            let expected = format!("{} lists, one for every domain", domains.len());
            let found = populations.len();
            return Err(Error::mismatch("labels of a stream", expected, found));
        }
        let proportions = self.proportions(num_classes)?;
        let mut problems = Vec::new();
        let mut chosen = Vec::with_capacity(domains.len());
        // Empty lists where the order needs none.
        let mut labels: Vec<&[usize]> = vec![&[]; domains.len()];
        for (index, (domain, population)) in domains.iter().zip(populations).enumerate() {
            let ids = if self.order.needs_labels() {
                population.labels().and_then(|known| {
                    labels[index] = known;
                    match (&proportions, &self.order) {
                        (Some(proportions), _) => self.with_proportions(proportions, known),
                        (None, Order::Imbalanced { factor, varied, .. }) => {
                            let ids = self.any(known.len())?;
                            let number = if *varied { index + 1 } else { 0 };
                            self.thinned(ids, known, num_classes, *factor, number)
                        }
                        (None, _) => self.any(known.len()),
                    }
                })
            } else {
                self.any(population.len())
            };
            match ids {
                Ok(ids) => chosen.push(ids),
                Err(problem) => problems.push(format!("domain `{domain}`: {problem}")),
            }
        }
        invalid_if_any(&problems)?;

        let mut parts: Vec<Vec<Vec<Arrival>>> = Vec::new();
        for (visit, members) in self.domains.visits().iter().enumerate() {
            let mut generator = generator(self.seed, Choice::Order, visit);
            let arrivals = take_turns(members, &chosen);
            let arrivals = self.ordered(arrivals, &labels, num_classes, &mut generator);
            let batches = arrivals.chunks(self.batch_size).map(<[Arrival]>::to_vec);
            parts.push(batches.collect());
        }
        if let Domains::Changing { .. } = self.domains {
            let rounds = parts.chunks(domains.len()).enumerate();
            let pieces = rounds.flat_map(|(round, parts)| {
                in_pieces(parts, &mut generator(self.seed, Choice::Pieces, round))
            });
            parts = pieces.collect();
        }
        Ok(StreamPlan {
            config: self.clone(),
            visits: parts.iter().map(Vec::len).collect(),
            batches: parts.concat(),
        })
    }

    /// The proportions of the classes, where the order asks for some.
    fn proportions(&self, num_classes: usize) -> Result<Option<Vec<f64>>> {
        let Order::LabelShift { proportions } = &self.order else {
            return Ok(None);
        };
        match proportions {
            Proportions::Dirichlet(concentration) => {
                let mut generator = generator(self.seed, Choice::Proportions, 0);
                Ok(Some(dirichlet(*concentration, num_classes, &mut generator)))
            }
            Proportions::Given(values) if values.len() != num_classes => Err(Error::Mismatch {
                what: "proportions of a stream".to_owned(),
                expected: format!("{num_classes}, one for every class"),
                found: values.len().to_string(),
            }),
            Proportions::Given(values) => {
                let sum: f64 = values.iter().sum();
                Ok(Some(values.iter().map(|value| value / sum).collect()))
            }
        }
    }

    /// Ids of a domain in ascending order, whatever their classes.
    fn any(&self, available: usize) -> Result<Vec<SampleId>, String> {
        let mut ids: Vec<SampleId> = (0..available as SampleId).collect();
        let Some(subset) = self.subset else {
            return if ids.is_empty() {
                Err("it has no samples".to_owned())
            } else {
                Ok(ids)
            };
        };
        if subset.count > available {
            return Err(format!(
                "`subset`: expected at most its {available} samples, found {}",
                subset.count
            ));
        }
        if subset.choose == Choose::Random {
            shuffle(&mut ids, &mut generator(self.seed, Choice::Subset, 0));
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
        let mut random = generator(self.seed, Choice::Subset, 0);
        if self
            .subset
            .is_none_or(|subset| subset.choose == Choose::Random)
        {
            for ids in &mut classes {
                shuffle(ids, &mut random);
            }
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
            counts
                .iter()
                .zip(&available)
                .all(|(needed, count)| needed <= count)
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

    /// Keeps fewer and fewer samples of one class after the other, so that the first has `factor` times as many as the last. Domains
    /// with the same number keep the same classes large.
    fn thinned(
        &self,
        ids: Vec<SampleId>,
        labels: &[usize],
        num_classes: usize,
        factor: f64,
        number: usize,
    ) -> Result<Vec<SampleId>, String> {
        let mut classes = by_class(ids, |id| labels[*id as usize], num_classes);
        let mut generator = generator(self.seed, Choice::Sizes, number);
        let mut ranks: Vec<usize> = (0..num_classes).collect();
        if number > 0 {
            shuffle(&mut ranks, &mut generator);
        }
        let most = classes.first().map_or(0, Vec::len) as f64;
        for (ids, rank) in classes.iter_mut().zip(ranks) {
            let share = factor.powf(-(rank as f64) / (num_classes.max(2) - 1) as f64);
            // A class that is to keep all its samples must not lose one to rounding.
            let count = (most * share + 1e-9).floor() as usize;
            shuffle(ids, &mut generator);
            ids.truncate(count.max(1));
        }
        let mut ids = classes.concat();
        if ids.is_empty() {
            return Err("it has no samples".to_owned());
        }
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
        let class = |arrival: &Arrival| labels[arrival.domain][arrival.id as usize];
        match &self.order {
            Order::InOrder {} => arrivals,
            Order::Shuffled {} | Order::LabelShift { .. } => {
                shuffle(&mut arrivals, generator);
                arrivals
            }
            Order::Correlated {
                concentration,
                slots,
                within,
            } => {
                shuffle(&mut arrivals, generator);
                let classes = by_class(arrivals, class, num_classes);
                let slots = slots.unwrap_or(num_classes);
                correlated(&classes, *concentration, slots, *within, generator)
            }
            Order::Imbalanced { concentration, .. } => {
                shuffle(&mut arrivals, generator);
                let classes = by_class(arrivals, class, num_classes);
                let concentration = concentration.unwrap_or(0.1);
                correlated(
                    &classes,
                    concentration,
                    num_classes,
                    Within::Runs,
                    generator,
                )
            }
            Order::Note { concentration } => {
                shuffle(&mut arrivals, generator);
                let classes = by_class(arrivals, class, num_classes);
                chunked(&classes, *concentration, generator)
            }
            Order::OnlineShift { ratio, draws } => {
                let classes = by_class(arrivals, class, num_classes);
                prevailing(&classes, *ratio, draws.unwrap_or(100), generator)
            }
        }
    }
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
    // 0.1 of 30 is 3, although the product may be a little less.
    let snapped = |value: f64| {
        let whole = value.round();
        if (value - whole).abs() < 1e-6 {
            whole
        } else {
            value
        }
    };
    let exact: Vec<f64> = proportions
        .iter()
        .map(|share| snapped(share * total as f64))
        .collect();
    let mut counts: Vec<usize> = exact.iter().map(|&value| value as usize).collect();
    let mut by_remainder: Vec<usize> = (0..counts.len()).collect();
    let remainder = |class: usize| exact[class] - exact[class].floor();
    by_remainder.sort_by(|&a, &b| remainder(b).total_cmp(&remainder(a)));
    let given: usize = counts.iter().sum();
    let missing = total.saturating_sub(given);
    for &class in by_remainder
        .iter()
        .filter(|&&class| proportions[class] > 0.0)
        .take(missing)
    {
        counts[class] += 1;
    }
    counts
}

/// The random choices of a plan. Each has a stream of its own, so that changing one leaves the others as they were.
#[derive(Clone, Copy)]
enum Choice {
    Order,
    Subset,
    Proportions,
    Sizes,
    Pieces,
}

fn generator(seed: u64, choice: Choice, index: usize) -> ChaCha8Rng {
    Purpose::new(*b"ttac stream plan, versi.")
        .with(23, [choice as u8])
        .stream(seed, index as u64)
}
