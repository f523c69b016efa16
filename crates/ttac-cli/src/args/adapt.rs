//! Arguments of the commands that adapt a model: `adapt`, `bench` and `demo`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::bail;
use ttac::experiment::{Family, GateChoice, SharesChoice, Spec, StreamPreset};
use ttac::method::Preset;
use ttac::protocol::{Guard, GuardAction, Reset};
use ttac::stream::{Choose, Order};

use super::fleet::Fleet;
use super::parse::{json_value, machines, order, shard};
use super::source::{Corrupted, Source};

#[derive(Clone, Debug, clap::Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch on the command line"
)]
pub struct Adapt {
    /// A ttac checkpoint
    #[arg(long, value_name = "FILE")]
    pub model: PathBuf,

    /// Its anchors, for the methods that need them
    #[arg(long, value_name = "FILE")]
    pub anchors: Option<PathBuf>,

    #[command(flatten)]
    pub source: Source,

    #[command(flatten)]
    pub corrupted: Corrupted,

    /// A stream by its name, such as `practical`: corruptions of severity 5, `--order`, `--batch-size` and
    /// `--reset`, as far as they are not given; `ttac streams` lists them
    #[arg(long, value_name = "NAME")]
    pub stream: Option<String>,

    /// The method; a wrong name lists the known ones
    #[arg(long, value_name = "NAME", default_value = "ttac")]
    pub method: String,

    /// Whose constants: `recommended`, which leave a stream alone that is fine; `recommended-0.1`, which
    /// adapt from the first batch on; `released` by the authors
    #[arg(long, value_name = "NAME", default_value = "recommended", value_parser = json_value::<Preset>)]
    pub preset: Preset,

    /// Change a constant of the method, e.g. `--set learning_rate=0.005` or
    /// `--set filter.posterior_threshold=0.8`
    #[arg(long, value_name = "FIELD=VALUE")]
    pub set: Vec<String>,

    /// The protocol: `n-o`, `n-m`, `y-o`, `y-m` (source trained as usual or jointly; one pass or many)
    #[arg(long, value_name = "NAME", default_value = "n-o", value_parser = json_value::<Family>)]
    pub protocol: Family,

    /// Recent samples to learn from again
    #[arg(
        long,
        value_name = "N",
        default_value = "4096",
        conflicts_with = "no_queue"
    )]
    pub queue: usize,

    /// Learn from each batch once
    #[arg(long)]
    pub no_queue: bool,

    /// Epochs over the queue for each batch (default 4), or passes over the set (default 10)
    #[arg(long, value_name = "N")]
    pub epochs: Option<usize>,

    /// Samples in a learning step
    #[arg(long, value_name = "N", default_value = "256")]
    pub minibatch: usize,

    /// Predict each batch before learning from it, as a service that answers at once
    #[arg(long)]
    pub predict_first: bool,

    /// Report the best epoch of many passes by the test labels, as the released program. An oracle
    #[arg(long)]
    pub oracle: bool,

    /// When to go back to the source: `never`, `per-visit` of a domain, `per-batch`; default `never`
    #[arg(long, value_name = "WHEN", value_parser = json_value::<Reset>)]
    pub reset: Option<Reset>,

    /// What to do when adaptation goes wrong: `warn`, `stop`, `reset`
    #[arg(long, value_name = "ACTION", default_value = "warn", value_parser = json_value::<GuardAction>)]
    pub guard: GuardAction,

    /// Whether a gate keeps the source in charge while the stream fits it: `auto` closed at the start,
    /// `open` at the start, `off`; default `auto` with the preset `recommended`,
    /// else `off`
    #[arg(long, value_name = "KIND", value_parser = json_value::<GateChoice>)]
    pub gate: Option<GateChoice>,

    /// Images between two false alarms of the gate on a stream that is fine, at least, on average
    #[arg(long, value_name = "IMAGES", default_value = "100000")]
    pub alarm: f64,

    /// Whether answers are corrected by the shares of the classes among recent images: `recent`,
    /// `lame` to agree with similar images of the batch as well, `off`; default `recent` with the
    /// preset `recommended`, else `off`
    #[arg(long, value_name = "KIND", value_parser = json_value::<SharesChoice>)]
    pub shares: Option<SharesChoice>,

    /// Samples that arrive per second; those that come while the method is busy are predicted by the
    /// weights it had before
    #[arg(long, value_name = "RATE")]
    pub speed: Option<f64>,

    /// Samples that arrive at a time; default 256
    #[arg(long, value_name = "N")]
    pub batch_size: Option<NonZeroUsize>,

    /// Order of arrival: `shuffled`, `in-order`, `sorted` by class, `correlated`, `note`, `online-shift` or
    /// `imbalanced`; the last four also with a number, as in `correlated:0.1` (docs/protocols.md); default
    /// `shuffled`
    #[arg(long, value_name = "KIND", value_parser = order)]
    pub order: Option<Order>,

    /// Only N images
    #[arg(long, value_name = "N")]
    pub subset: Option<NonZeroUsize>,

    /// Which of them, with `--subset`: the `first`, or some at `random` (by the seed), as data sorted
    /// by class needs it
    #[arg(long, value_name = "KIND", default_value = "first", value_parser = json_value::<Choose>)]
    pub choose: Choose,

    /// Seed of the order
    #[arg(long, value_name = "N", default_value = "0")]
    pub seed: u64,

    /// Leave out pictures that cannot be decoded, and count them
    #[arg(long)]
    pub skip_bad: bool,

    /// Write the result with its protocol card to this JSON file
    #[arg(long, short, value_name = "FILE")]
    pub out: Option<PathBuf>,

    /// Write a JSON line for every batch to this file
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,

    /// Write `domain,id,predicted,class,confidence`, and `file` where images are files, for every image
    /// to this CSV file
    #[arg(long, value_name = "FILE")]
    pub predictions: Option<PathBuf>,

    /// Keep the features of N samples before and after adaptation in a file beside the record, for
    /// the t-SNE of `ttac report --html`; a few hundred are plenty
    #[arg(long, value_name = "N")]
    pub features: Option<NonZeroUsize>,

    /// Write the adapted weights as a checkpoint
    #[arg(long, value_name = "FILE")]
    pub save_model: Option<PathBuf>,

    /// Save the state to this file now and then, to continue from
    #[arg(long, value_name = "FILE")]
    pub checkpoint: Option<PathBuf>,

    /// Batches between two saves of the state
    #[arg(long, value_name = "N", default_value = "10", requires = "checkpoint")]
    pub checkpoint_every: NonZeroUsize,

    /// Continue from the state in the `--checkpoint` file
    #[arg(long, requires = "checkpoint")]
    pub resume: bool,
}

impl TryFrom<&Adapt> for Spec {
    type Error = anyhow::Error;

    fn try_from(args: &Adapt) -> anyhow::Result<Self> {
        let mut set = std::collections::BTreeMap::new();
        for assignment in &args.set {
            let Some((field, value)) = assignment.split_once('=') else {
                bail!("`--set {assignment}`: expected FIELD=VALUE");
            };
            let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
            set.insert(field.to_owned(), value);
        }
        let Adapt {
            source, corrupted, ..
        } = args;
        let stream = args.stream.as_deref().map(StreamPreset::by_name);
        let stream = stream.transpose()?;
        let defaults = Self::default();
        // A corruption comes with its own severity.
        let visited = stream.filter(|_| corrupted.corruption.is_none());
        let batch_size = args.batch_size.map(NonZeroUsize::get);
        let arriving = stream.map_or(defaults.batch_size, |stream| stream.batch_size);
        let order = stream.map_or(defaults.order, StreamPreset::order);
        let reset = stream.map_or(defaults.reset, |stream| stream.reset);
        Ok(Self {
            model: args.model.clone(),
            anchors: args.anchors.clone(),
            data: source.data.clone(),
            root: source.root.clone(),
            split: source.split,
            corruption: match visited {
                Some(stream) => Some(stream.corruption.to_owned()),
                None => corrupted.corruption.clone(),
            },
            severity: visited.map_or(corrupted.severity, |stream| Some(stream.severity())),
            corruption_seed: corrupted.corruption_seed,
            frost_textures: corrupted.frost_textures(),
            skip_bad: args.skip_bad,
            method: args.method.clone(),
            preset: args.preset,
            set,
            protocol: args.protocol,
            queue: args.queue,
            no_queue: args.no_queue,
            epochs: args.epochs,
            minibatch: args.minibatch,
            predict_first: args.predict_first,
            oracle: args.oracle,
            reset: args.reset.unwrap_or(reset),
            guard: Guard::with_action(args.guard),
            gate: args.gate,
            alarm: args.alarm,
            shares: args.shares,
            speed: args.speed,
            batch_size: batch_size.unwrap_or(arriving),
            order: args.order.clone().unwrap_or(order),
            subset: args.subset.map(NonZeroUsize::get),
            choose: args.choose,
            seed: args.seed,
            features: args.features.map(NonZeroUsize::get),
        })
    }
}

#[derive(Debug, clap::Args)]
pub struct Demo {
    /// Folder for the model, the results and the page
    #[arg(long, short, value_name = "DIR", default_value = "ttac-demo")]
    pub out: PathBuf,

    /// Images under each corruption; with fewer there is less to learn from
    #[arg(long, value_name = "N", default_value = "4000")]
    pub images: NonZeroUsize,

    /// A checkpoint of your own instead of the shipped one, with clean labelled images for it
    #[arg(long, value_name = "FILE", requires = "data")]
    pub model: Option<PathBuf>,

    /// The anchors of that checkpoint; without them TTAC runs in its source-free form
    #[arg(long, value_name = "FILE", requires = "model")]
    pub anchors: Option<PathBuf>,

    /// The data set that the checkpoint is for, which is corrupted on the fly, e.g. `image-folder`
    #[arg(long, value_name = "NAME", requires = "model")]
    pub data: Option<String>,

    /// Where the data set lies
    #[arg(long, value_name = "DIR", requires = "data")]
    pub root: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub struct Bench {
    /// A TOML file: `[grid]` has options of `ttac adapt`, a list where several values are wanted, and
    /// each `[[row]]` a name (else its method is the name) and its own options; or the JSON record of a
    /// result, whose experiment is run again
    #[arg(value_name = "CONFIG")]
    pub config: PathBuf,

    /// Folder for the cells; default `results/` and the name of the configuration
    #[arg(long, short, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// Run only the I-th of N disjoint parts of the grid, as in `--shard 2/4`
    #[arg(long, value_name = "I/N", value_parser = shard)]
    pub shard: Option<(usize, usize)>,

    /// Only check the configuration, list the cells and estimate memory and time by two batches of each
    /// row
    #[arg(long)]
    pub dry_run: bool,

    /// Say what the cells that are left cost: hours of machines like this one, how long several take, and
    /// the price
    #[arg(long, requires = "dry_run")]
    pub plan: bool,

    /// Numbers of machines to plan for
    #[arg(long, value_name = "N,N,..", value_delimiter = ',', default_value = "1,4,16,64", requires = "plan", value_parser = machines)]
    pub machines: Vec<usize>,

    /// The price of a machine like this one for an hour, in any currency
    #[arg(long, value_name = "NUMBER", requires = "plan")]
    pub price: Option<f64>,

    #[command(flatten, next_help_heading = "Many machines")]
    pub fleet: Fleet,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        adapt: Adapt,
    }

    #[test]
    fn the_defaults_of_the_command_are_those_of_a_specification() {
        let line = Line::parse_from(["ttac", "--model", "m", "--data", "shapes10"]);
        let spec = Spec::try_from(&line.adapt).unwrap();
        assert_eq!(spec, Spec::new("m", "shapes10"));
    }

    #[test]
    fn a_stream_stands_in_for_what_is_not_given() {
        let spec = |line: &str| {
            let line = format!("ttac --model m --data cifar10 {line}");
            Spec::try_from(&Line::parse_from(line.split(' ')).adapt)
        };
        let practical = spec("--stream practical").unwrap();
        let written = "--corruption practical --severity 5 --order correlated:0.1 --batch-size 64";
        assert_eq!(practical, spec(written).unwrap());
        let changed = spec("--stream note --corruption fog --severity 3 --batch-size 8").unwrap();
        let written = "--corruption fog --severity 3 --batch-size 8 --order note --reset per-visit";
        assert_eq!(changed, spec(written).unwrap());
        let error = spec("--stream practicle").unwrap_err().to_string();
        assert!(error.contains("did you mean `practical`?"), "{error}");
    }

    /// Every key of a specification is an option of the command, so that grids and command lines say the same.
    #[test]
    fn every_key_of_a_specification_is_an_option() {
        let command = <Line as clap::CommandFactory>::command();
        let options: Vec<&str> = command
            .get_arguments()
            .filter_map(|a| a.get_long())
            .collect();
        for key in Spec::keys() {
            assert!(options.contains(&key.as_str()), "{key}");
        }
    }
}
