//! A specification, opened: everything read and checked, nothing learned yet.

use std::collections::BTreeSet;
use std::path::Path;

use burn::tensor::Device;

use super::visits::Visits;
use super::{Card, Spec};
use crate::checkpoint::{Checkpoint, Header};
use crate::data::{Dataset, DatasetExt, OpenOptions, default_root, open};
use crate::method::MethodSpec;
use crate::model::Model;
use crate::protocol::{FeatureRecord, Protocol, Stream};
use crate::session::Session;
use crate::stats::SourceStatistics;
use crate::stream::{Choose, StreamConfig, StreamPlan};
use crate::{Error, Result};

/// A model, a method, a protocol and a stream that fit together.
pub struct Experiment {
    /// What it was opened from.
    pub spec: Spec,
    /// The header of the source model's checkpoint.
    pub header: Header,
    /// The source model.
    pub model: Model,
    /// The method with all its constants.
    pub method: MethodSpec,
    /// The protocol.
    pub protocol: Protocol,
    /// The data of each domain of the plan.
    pub domains: Vec<Box<dyn Dataset>>,
    /// What arrives, in which order.
    pub plan: StreamPlan,
    /// What its result will be made with.
    pub card: Card,
    /// What somebody should know before it is run.
    pub warnings: Vec<String>,
    anchors: Option<SourceStatistics>,
}

impl Experiment {
    /// Reads model, anchors and data, and checks that they fit method and protocol.
    pub fn open(spec: &Spec, device: &Device) -> Result<Self> {
        let checkpoint = Checkpoint::load(&spec.model, device)?;
        let model = Model::from(&checkpoint);
        let header = checkpoint.header;
        let (protocol, method) = (spec.protocol()?, spec.method_spec()?);
        let family = spec.check_family(&method, &protocol)?;
        let anchors = match &spec.anchors {
            Some(path) => Some(SourceStatistics::load(path)?),
            None => None,
        };
        // What the method lacks is said before any data is read.
        let session = session(&model, anchors.as_ref(), &method, &protocol)?;
        let (stream, domains) = open_domains(spec, &header)?;
        for data in domains.iter().filter(|data| data.is_labelled()) {
            check_classes(&spec.model, &header, data.as_ref())?;
        }
        let (plan, mut warnings) = plan(&stream, &domains)?;
        warnings.extend_from_slice(session.warnings());
        let protocol = session.protocol().clone();
        let mut card = Card::new(&session, anchors.as_ref(), &plan, &domains)?;
        card.preset = spec.preset;
        card.family = family;
        card.spec = Some(spec.clone());
        drop(session);
        Ok(Self {
            spec: spec.clone(),
            header,
            model,
            method,
            protocol,
            domains,
            plan,
            card,
            warnings,
            anchors,
        })
    }

    /// Starts a session of the method, fresh from the source.
    pub fn session(&self) -> Result<Session> {
        session(
            &self.model,
            self.anchors.as_ref(),
            &self.method,
            &self.protocol,
        )
    }

    /// Returns the plan with its data.
    pub fn stream(&self) -> Stream<'_> {
        Stream {
            plan: &self.plan,
            domains: &self.domains,
        }
    }

    /// Whether a gate was asked for that the anchors are not calibrated for.
    pub fn lacks_gate(&self) -> Result<bool> {
        Ok(self.protocol.gate.is_none() && self.spec.protocol()?.gate.is_some())
    }

    /// Names the classes as the data have them, or else the model.
    pub fn classes(&self) -> Vec<String> {
        if self.is_labelled() {
            self.domains[0].info().classes.clone()
        } else {
            self.model.classes.clone()
        }
    }

    /// Whether errors can be counted.
    pub fn is_labelled(&self) -> bool {
        self.domains.iter().all(|data| data.is_labelled())
    }

    /// Computes features before and after, if the specification asks for them.
    pub fn features(&self, session: &Session) -> Result<Option<FeatureRecord>> {
        let stream = self.stream();
        let measure = |count| FeatureRecord::measure(&stream, session, count);
        self.spec.features.map(measure).transpose()
    }
}

fn session(
    model: &Model,
    anchors: Option<&SourceStatistics>,
    method: &MethodSpec,
    protocol: &Protocol,
) -> Result<Session> {
    let builder = Session::builder(model)
        .method_spec(method)
        .protocol(protocol);
    match anchors {
        Some(anchors) => builder.anchors(anchors).build(),
        None => builder.build(),
    }
}

/// Opens every domain of a specification.
fn open_domains(spec: &Spec, model: &Header) -> Result<(StreamConfig, Vec<Box<dyn Dataset>>)> {
    let visits = Visits::parse(spec.corruption.as_deref())?;
    let domains = visits.domains(&spec.data, spec.severity)?;
    let root = spec.root.clone();
    let root = root.unwrap_or_else(|| default_root().join(&spec.data));
    let mut opened = Vec::new();
    for domain in domains.list() {
        let options = OpenOptions {
            corruption: domain.corruption,
            severity: domain.severity,
            corruption_seed: spec.corruption_seed,
            frost_textures: spec.frost_textures.clone(),
            skip_bad: spec.skip_bad,
            unlabelled: true,
            ..OpenOptions::for_model(&model.input, &model.classes)
        };
        opened.push(open(&spec.data, &root, spec.split, &options)?);
    }
    let mut config = StreamConfig::new(domains)
        .with_order(spec.order.clone())
        .with_batch_size(spec.batch_size)
        .with_seed(spec.seed);
    if let Some(count) = spec.subset {
        config = config.with_subset(count, spec.choose);
    }
    Ok((config, opened))
}

/// Plans a stream, and warns of a subset that lacks classes.
fn plan(config: &StreamConfig, domains: &[Box<dyn Dataset>]) -> Result<(StreamPlan, Vec<String>)> {
    let labels: Vec<Option<Vec<usize>>> = domains
        .iter()
        .map(|data| data.labels())
        .collect::<Result<_>>()?;
    let mut warnings = Vec::new();
    if let Some(subset) = &config.subset
        && subset.choose == Choose::First
    {
        for (labels, domain) in labels.iter().zip(config.domains.list()) {
            let Some(labels) = labels else { continue };
            let first = classes_in(labels.iter().take(subset.count));
            let all = classes_in(labels);
            // Shuffled data may lack some; sorted data lacks most.
            if 2 * first <= all.min(subset.count) {
                warnings.push(format!(
                    "the first {} samples of {domain} are of {first} of its {all} classes; samples chosen at random are of all",
                    subset.count
                ));
            }
        }
    }
    Ok((config.plan_for(domains)?, warnings))
}

/// Counts the classes among labels.
fn classes_in<'a>(labels: impl IntoIterator<Item = &'a usize>) -> usize {
    labels.into_iter().collect::<BTreeSet<_>>().len()
}

/// Refuses to score a model, whose file and header these are, on classes of other things.
pub fn check_classes(model: &Path, header: &Header, data: &dyn Dataset) -> Result<()> {
    let mismatch = |expected: String, found: String| {
        let data = &data.info().name;
        Err(Error::Mismatch {
            what: format!("classes of `{}` and {data}", model.display()),
            expected,
            found,
        })
    };
    let (ours, theirs) = (&header.classes, &data.info().classes);
    if ours.len() != theirs.len() {
        return mismatch(
            format!("{} in the model", ours.len()),
            format!("{} in the data", theirs.len()),
        );
    }
    // Names that an import made up say nothing; real ones have to be the data's, in its order.
    let made_up = |(class, name): (usize, &String)| *name == format!("class {class}");
    if ours != theirs && !ours.iter().enumerate().all(made_up) {
        return mismatch(
            format!("`{}` in the model", ours.join("`, `")),
            format!("`{}` in the data", theirs.join("`, `")),
        );
    }
    Ok(())
}
