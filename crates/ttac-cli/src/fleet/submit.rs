//! Submission of what is not there.

use anyhow::bail;
use ttac_fleet::{Queue, QueueSettings, Store};

use super::task::{Inputs, Task, upload};
use super::tries::forgive;
use super::{About, results};
use crate::command::bench::Runs;

/// What came of a submission.
pub struct Submitted {
    /// Cells that were submitted now.
    pub now: usize,
    /// Cells that were waiting or running already.
    pub before: usize,
}

/// Refuses a store with results that are none of a grid's.
pub fn check_others(store: &Store, names: &[String]) -> anyhow::Result<()> {
    let others = results::others(store, names)?;
    let Some(first) = others.first() else {
        return Ok(());
    };
    bail!(
        "the store `{store}` holds {} results that are none of this grid's, such as `{first}`: a table would mix them; give an empty \
         prefix, or `--extend` if they belong to the same table",
        others.len()
    )
}

/// Submits some cells of a grid, those that take longest first.
pub fn submit(
    runs: &Runs,
    left: &[usize],
    queue: &str,
    settings: &QueueSettings,
) -> anyhow::Result<Submitted> {
    let store = runs.store();
    let about = About::load_or_create(store)?;
    let queue = Queue::connect(queue, &about.queue)?;
    queue.create(settings)?;
    let mut inputs = Inputs::default();
    let mut submitted = Submitted { now: 0, before: 0 };
    for &index in left {
        let task = runs.task(index, &mut inputs)?;
        upload(store, &task)?;
        // Half a result would refuse the whole one. A whole one may have come from a worker just now.
        results::remove_damaged(store, &task.name)?;
        forgive(store, &task.digest)?;
        if queue.submit(&task.digest, &serde_json::to_vec(&task)?)? {
            submitted.before += 1;
        } else {
            submitted.now += 1;
        }
    }
    Ok(submitted)
}

impl Runs {
    /// Describes a cell to a worker.
    pub(super) fn task(&self, index: usize, inputs: &mut Inputs) -> anyhow::Result<Task> {
        let (cell, name, digest) = self.cell(index);
        Task::of_cell(cell, name, digest.to_owned(), inputs)
    }
}
