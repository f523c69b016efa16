//! No adaptation at all.

use serde::{Deserialize, Serialize};

use super::entry::{Entry, Variant};
use super::{Learned, Learner, LearnerConfig, Method, Minibatch, Needs, Stage};
use crate::Result;

pub(super) const ENTRY: Entry<UnadaptedConfig> = Entry {
    variants: &[Variant {
        name: "test",
        about: "the source network as it is",
        preset: |_, _| UnadaptedConfig {},
    }],
    needs: |_| Needs {
        adapts: false,
        ..Needs::NETWORK
    },
    build: |_, _, _| Ok((LearnerConfig::default(), Box::new(Unadapted))),
};

/// [`Unadapted`] has no constants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnadaptedConfig {}

/// The source network as it is, with its running norm statistics: TEST in tables.
///
/// # What it does
/// It predicts. It is the row that every other method is compared with.
///
/// # When to use
/// Use it to know what the shift costs.
///
/// # References
/// `docs/methods.md`, TEST.
#[derive(Clone, Copy, Debug)]
pub struct Unadapted;

impl Method for Unadapted {
    fn learn(&mut self, _: &mut Learner, _: &Minibatch, _: &Stage) -> Result<Learned> {
        Ok(Learned::nothing())
    }

    fn boxed_clone(&self) -> Box<dyn Method> {
        Box::new(*self)
    }
}
