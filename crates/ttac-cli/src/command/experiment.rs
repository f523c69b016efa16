//! What `adapt` runs once and `bench` many times.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;

use anyhow::bail;
use ttac::Error;
use ttac::burn::tensor::Device;
use ttac::checkpoint::{Checkpoint, Header, fingerprint};
use ttac::data::{Dataset, OpenOptions};
use ttac::method::{Method, MethodConfig};
use ttac::protocol::{
    AnchorCard, Card, FeatureRecord, Guard, Passes, Prediction, Protocol, QueueConfig, Selection,
    Stream,
};
use ttac::stats::SourceStatistics;
use ttac::stream::{Choose, Domain, Domains, StreamConfig, StreamPlan};

use super::{check_classes, open, open_options, program};
use crate::args::Adapt;
use crate::progress::say;

/// Passes over the set where nobody says how many.
const DEFAULT_PASSES: usize = 10;

/// A method, a model, a stream and a protocol that fit together.
pub struct Experiment {
    pub checkpoint: Checkpoint,
    pub protocol: Protocol,
    pub config: MethodConfig,
    pub anchors: Option<SourceStatistics>,
    pub domains: Vec<Box<dyn Dataset>>,
    pub plan: StreamPlan,
    pub card: Card,
    /// Samples whose features are kept.
    pub kept_features: Option<NonZeroUsize>,
}

impl Experiment {
    /// Everything is read and checked; nothing is learned yet.
    pub fn new(args: &Adapt, device: &Device) -> anyhow::Result<Self> {
        let checkpoint = Checkpoint::load(&args.model, device)?;
        let header = &checkpoint.header;
        let protocol = protocol(args);
        let config = method_config(args, &protocol)?;
        let digest = fingerprint(&header.architecture, &checkpoint.network);
        let anchors = match &args.anchors {
            Some(path) => {
                let statistics = SourceStatistics::load(path)?;
                statistics.check_backbone(&digest)?;
                Some(statistics)
            }
            None => None,
        };
        check_family(args, &config, &protocol)?;
        protocol.validate(args.batch_size.get())?;
        let method = config.init(checkpoint.network.clone(), anchors.as_ref())?;
        let (stream, domains) = domains(args, header)?;
        for data in domains.iter().filter(|data| data.is_labelled()) {
            check_classes(&args.model, header, data.as_ref())?;
        }
        let plan = plan(&stream, &domains)?;
        let oracle = matches!(
            protocol.passes,
            Passes::Many {
                selection: Selection::OracleBest,
                ..
            }
        );
        let card = Card {
            method: method.name().to_owned(),
            preset: args.preset,
            family: Card::family(&config, &protocol),
            constants: config.clone(),
            protocol: protocol.clone(),
            architecture: header.architecture.name(),
            model: digest,
            source_objective: header.objective,
            anchors: anchors
                .as_ref()
                .filter(|_| config.needs_anchors())
                .map(AnchorCard::from),
            stream,
            corruptions: domains.iter().map(|data| data.corruption()).collect(),
            plan: plan.digest(),
            oracle,
            skipped: domains.iter().map(|data| data.skipped()).sum(),
            program: program(),
        };
        Ok(Self {
            checkpoint,
            protocol,
            config,
            anchors,
            domains,
            plan,
            card,
            kept_features: args.features,
        })
    }

    /// The method, fresh from the source.
    pub fn method(&self) -> ttac::Result<Box<dyn Method>> {
        let network = self.checkpoint.network.clone();
        self.config.init(network, self.anchors.as_ref())
    }

    /// Names of the classes as the data have them, or else the model.
    pub fn classes(&self) -> Vec<String> {
        if self.is_labelled() {
            self.domains[0].classes()
        } else {
            self.checkpoint.header.classes.clone()
        }
    }

    /// Whether errors can be counted.
    pub fn is_labelled(&self) -> bool {
        self.domains.iter().all(|data| data.is_labelled())
    }

    /// Features before and after, if they were asked for.
    pub fn features(
        &self,
        method: &dyn Method,
        device: &Device,
    ) -> ttac::Result<Option<FeatureRecord>> {
        let measure = |count: NonZeroUsize| {
            let (stream, source) = (self.stream(device), &self.checkpoint.network);
            FeatureRecord::measure(&stream, source, method, count.get())
        };
        self.kept_features.map(measure).transpose()
    }

    pub fn stream<'a>(&'a self, device: &'a Device) -> Stream<'a> {
        Stream {
            plan: &self.plan,
            domains: &self.domains,
            input: &self.checkpoint.header.input,
            device,
        }
    }
}

/// The method with all its constants: those of the preset, and those that were set.
pub fn constants(args: &Adapt) -> anyhow::Result<MethodConfig> {
    method_config(args, &protocol(args))
}

fn protocol(args: &Adapt) -> Protocol {
    let many = args.protocol.ends_with('m');
    let queue = QueueConfig {
        capacity: args.queue,
        epochs: args.epochs.unwrap_or(QueueConfig::default().epochs),
    };
    Protocol {
        passes: if many {
            Passes::Many {
                epochs: args.epochs.unwrap_or(DEFAULT_PASSES),
                selection: if args.oracle {
                    Selection::OracleBest
                } else {
                    Selection::Last
                },
            }
        } else {
            Passes::One
        },
        queue: (!many && !args.no_queue).then_some(queue),
        minibatch: args.minibatch,
        prediction: if args.predict_first {
            Prediction::PredictFirst
        } else {
            Prediction::AdaptFirst
        },
        reset: args.reset,
        guard: Guard {
            action: args.guard,
            ..Guard::default()
        },
        arrival_rate: args.speed,
        seed: args.seed,
    }
}

fn method_config(args: &Adapt, protocol: &Protocol) -> anyhow::Result<MethodConfig> {
    let mut config = MethodConfig::by_name(&args.method, args.preset, protocol.setting())?;
    for assignment in &args.set {
        let Some((field, value)) = assignment.split_once('=') else {
            bail!("`--set {assignment}`: expected FIELD=VALUE");
        };
        config = config.with_field(field, value)?;
    }
    Ok(config)
}

/// The letters have to be those of the method.
fn check_family(args: &Adapt, config: &MethodConfig, protocol: &Protocol) -> anyhow::Result<()> {
    let family = Card::family(config, protocol).to_lowercase();
    if family == args.protocol {
        return Ok(());
    }
    let problem = if family.starts_with('y') {
        format!(
            "`{}` learns with a self-supervised branch, which is a Y protocol",
            args.method
        )
    } else {
        format!(
            "`{}` has no self-supervised branch, which is an N protocol",
            args.method
        )
    };
    Err(Error::Invalid {
        what: "protocol",
        problem: format!("{problem}: give `--protocol {family}`"),
    }
    .into())
}

fn domains(args: &Adapt, model: &Header) -> anyhow::Result<(StreamConfig, Vec<Box<dyn Dataset>>)> {
    let corruptions: Vec<Option<&str>> = match &args.corrupted.corruption {
        None => vec![None],
        Some(list) => list.split(',').map(|name| Some(name.trim())).collect(),
    };
    let mut opened = Vec::new();
    let mut names = Vec::new();
    for corruption in corruptions {
        let asked = OpenOptions {
            skip_bad: args.skip_bad,
            unlabelled: true,
            ..open_options(&args.corrupted, corruption, model)
        };
        opened.push(open(&args.source, &asked)?);
        names.push(match (corruption, args.corrupted.severity) {
            (Some(name), Some(severity)) => Domain::corrupted(&args.source.data, name, severity),
            _ => Domain::clean(&args.source.data),
        });
    }
    let domains = if names.len() == 1 {
        Domains::One {
            domain: names.remove(0),
        }
    } else {
        Domains::Sequence { domains: names }
    };
    let mut config = StreamConfig::new(domains)
        .with_order(args.order.clone())
        .with_batch_size(args.batch_size.get())
        .with_seed(args.seed);
    if let Some(count) = args.subset {
        config = config.with_subset(count.get(), args.choose);
    }
    Ok((config, opened))
}

fn plan(config: &StreamConfig, domains: &[Box<dyn Dataset>]) -> ttac::Result<StreamPlan> {
    let labels: Vec<Vec<usize>> = domains
        .iter()
        .map(|data| data.labels())
        .collect::<ttac::Result<_>>()?;
    if let Some(subset) = &config.subset
        && subset.choose == Choose::First
    {
        for (labels, domain) in labels.iter().zip(config.domains.list()) {
            let first = classes_in(labels.iter().take(subset.count));
            let all = classes_in(labels);
            // Shuffled data may lack some; sorted data lacks most.
            if 2 * first <= all.min(subset.count) {
                say(&format!(
                    "warning: the first {} samples of {domain} are of {first} of its {all} classes; `--choose random` takes some of all",
                    subset.count
                ));
            }
        }
    }
    let lists: Vec<&[usize]> = labels.iter().map(Vec::as_slice).collect();
    config.plan(&lists, domains[0].classes().len())
}

/// How many classes there are among labels.
fn classes_in<'a>(labels: impl IntoIterator<Item = &'a usize>) -> usize {
    labels.into_iter().collect::<BTreeSet<_>>().len()
}
