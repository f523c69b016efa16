//! A method by name, with all its constants as plain JSON.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Adapter;
use super::entry::{self, Needs, Preset, Setting};
use crate::backbone::Backbone;
use crate::error::suggestion;
use crate::stats::SourceStatistics;
use crate::{Error, Result};

/// A method by its name, with all its constants. It can be written down, changed field by field, and built for a
/// network.
///
/// ```
/// use ttac::method::{MethodSpec, Preset, Setting};
///
/// let tent = MethodSpec::preset("tent", Preset::Recommended, Setting::NoQueue)?;
/// let slower = tent.with_field("learning_rate", "0.0005")?;
/// assert_eq!(slower.settings["learning_rate"], 0.0005);
/// # Ok::<(), ttac::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MethodSpec {
    /// The name, one of [`method_names`](super::method_names).
    pub name: String,
    /// Every constant of the method, as the JSON form of its `..Config` type.
    pub settings: Value,
}

impl MethodSpec {
    /// Returns a preset of a method for a kind of protocol.
    pub fn preset(name: &str, preset: Preset, setting: Setting) -> Result<Self> {
        let found = entry::find(name)?.preset(name, preset, setting);
        Ok(Self {
            name: name.to_owned(),
            settings: found.expect("the entry was found by this name"),
        })
    }

    /// Takes constants from a typed configuration such as [`TentConfig`](super::TentConfig).
    ///
    /// # Panics
    /// If the configuration is not plain JSON, which all of this crate are.
    pub fn of(name: &str, config: &impl Serialize) -> Self {
        Self {
            name: name.to_owned(),
            settings: entry::plain(config),
        }
    }

    /// Returns the same method with one constant changed: `learning_rate` to `0.02`, or, inside another,
    /// `filter.posterior_threshold` to `0.8`. Values are JSON; text need not be quoted.
    pub fn with_field(&self, path: &str, value: &str) -> Result<Self> {
        let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
        self.with_value(path, value)
    }

    /// Returns the same method with one constant changed to a JSON value.
    pub fn with_value(&self, path: &str, value: Value) -> Result<Self> {
        let invalid = |problem: String| Error::Invalid {
            what: "method constant",
            problem,
        };
        let mut settings = self.settings.clone();
        let (parents, last) = path.rsplit_once('.').map_or(("", path), |(p, l)| (p, l));
        let mut place = &mut settings;
        for part in parents.split('.').filter(|part| !part.is_empty()) {
            place = place
                .get_mut(part)
                .ok_or_else(|| invalid(format!("no `{part}` in `{path}`")))?;
        }
        let fields = place
            .as_object_mut()
            .ok_or_else(|| invalid(format!("`{parents}` has no fields")))?;
        if !fields.contains_key(last) {
            let known: Vec<&str> = fields.keys().map(String::as_str).collect();
            let advice = suggestion(last, &known);
            return Err(invalid(format!("no field `{path}`; {advice}")));
        }
        fields.insert(last.to_owned(), value);
        let settings = entry::find(&self.name)?
            .complete(&settings)
            .map_err(|e| invalid(format!("`{path}`: {e}")))?;
        Ok(Self {
            name: self.name.clone(),
            settings,
        })
    }

    /// Returns the same method with constants that it does not name at their defaults.
    pub fn completed(&self) -> Result<Self> {
        let settings = entry::find(&self.name)?.complete(&self.settings);
        let settings = settings.map_err(|problem| Error::Invalid {
            what: "method constant",
            problem: format!("`{}`: {problem}", self.name),
        })?;
        Ok(Self {
            name: self.name.clone(),
            settings,
        })
    }

    /// Says what the method needs with these constants.
    pub fn needs(&self) -> Result<Needs> {
        let needs = entry::find(&self.name)?.needs(&self.settings);
        needs.map_err(|problem| Error::Invalid {
            what: "method constant",
            problem: format!("`{}`: {problem}", self.name),
        })
    }

    /// Builds the method around a trained network. What the network or the anchors lack is an error, before any
    /// work.
    pub fn build<B: Backbone + Sync + 'static>(
        &self,
        network: B,
        anchors: Option<&SourceStatistics>,
    ) -> Result<Adapter> {
        let needs = self.needs()?;
        needs.check(&self.name, &network, anchors)?;
        let (learner, method) =
            entry::find(&self.name)?.build(&self.settings, &network, anchors)?;
        let reference = anchors.and_then(|anchors| anchors.norms.as_ref());
        match reference {
            Some(reference) => Adapter::with_reference(network, learner, method, needs, reference),
            None => Ok(Adapter::new(network, learner, method, needs)),
        }
    }
}
