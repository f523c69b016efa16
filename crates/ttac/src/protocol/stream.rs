//! A plan with the data it names.

use crate::data::{Batch, Dataset, SampleId};
use crate::stream::{Arrival, StreamPlan};
use crate::{Error, Result};

/// A plan with the data it names: what a [`run`](super::run) shows a session.
pub struct Stream<'a> {
    /// What arrives.
    pub plan: &'a StreamPlan,
    /// The data of each domain of the plan.
    pub domains: &'a [Box<dyn Dataset>],
}

impl<'a> Stream<'a> {
    /// Puts a plan and its data together; a plan that names samples which are not there is refused.
    pub fn new(plan: &'a StreamPlan, domains: &'a [Box<dyn Dataset>]) -> Result<Self> {
        let sizes: Vec<usize> = domains.iter().map(|data| data.info().len).collect();
        plan.check(&sizes)?;
        Ok(Self { plan, domains })
    }

    /// Reads the samples of some arrivals. Their ids are unique over all domains.
    pub fn batch(&self, arrivals: &[Arrival]) -> Result<Batch> {
        let mut whole: Option<Batch> = None;
        // Neighbours of one domain are read together.
        for group in arrivals.chunk_by(|a, b| a.domain == b.domain) {
            let ids: Vec<SampleId> = group.iter().map(|arrival| arrival.id).collect();
            let mut part = self.domains[group[0].domain].batch(&ids)?;
            part.ids = group.iter().map(unique_id).collect();
            match &mut whole {
                None => whole = Some(part),
                Some(whole) => {
                    whole.ids.extend(part.ids);
                    whole.samples.append(part.samples)?;
                    whole.labels = match (whole.labels.take(), part.labels) {
                        (Some(mut labels), Some(more)) => {
                            labels.extend(more);
                            Some(labels)
                        }
                        _ => None,
                    };
                }
            }
        }
        whole.ok_or_else(|| Error::Invalid {
            what: "stream",
            problem: "a batch is empty".to_owned(),
        })
    }

    /// Returns the number of each visit's first batch.
    pub(super) fn visit_starts(&self) -> Vec<usize> {
        let mut next = 0;
        let visits = self.plan.visits.iter();
        visits
            .map(|&count| {
                let start = next;
                next += count;
                start
            })
            .collect()
    }
}

/// Makes an id that no other domain's sample has.
fn unique_id(arrival: &Arrival) -> SampleId {
    (arrival.domain as SampleId) << 40 | arrival.id
}
