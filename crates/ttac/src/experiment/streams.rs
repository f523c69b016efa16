//! The streams that methods are measured on, by name.

use std::fmt::Write;

use crate::error::suggestion;
use crate::protocol::Reset;
use crate::stream::{Arrival, Order, Population, StreamConfig};
use crate::{Error, Result};

use super::visits::Visits;

/// A stream that others have measured methods on: what a specification has to say to get it.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamPreset {
    /// Its name.
    pub name: &'static str,
    /// One line of explanation.
    pub about: &'static str,
    /// The corruptions, as in [`Spec::corruption`](super::Spec::corruption).
    pub corruption: &'static str,
    /// The order of arrival as a word, as in [`Spec::order`](super::Spec::order).
    pub order: &'static str,
    /// How many samples arrive at a time.
    pub batch_size: usize,
    /// When the method goes back to the source.
    pub reset: Reset,
}

/// The severity of the corruptions of every stream.
const SEVERITY: u8 = 5;

const fn stream(
    name: &'static str,
    about: &'static str,
    corruption: &'static str,
    order: &'static str,
    batch_size: usize,
) -> StreamPreset {
    StreamPreset {
        name,
        about,
        corruption,
        order,
        batch_size,
        reset: Reset::Never,
    }
}

/// Every stream that has a name.
static STREAMS: [StreamPreset; 12] = [
    StreamPreset {
        reset: Reset::PerVisit,
        ..stream(
            "one-by-one",
            "one corruption at a time, from the source",
            "standard",
            "shuffled",
            200,
        )
    },
    stream(
        "continual",
        "one corruption after the other",
        "standard",
        "shuffled",
        200,
    ),
    stream(
        "gradual",
        "each corruption rises and falls",
        "gradual:standard",
        "shuffled",
        200,
    ),
    stream(
        "mixed",
        "all corruptions at once",
        "mixed:standard",
        "shuffled",
        200,
    ),
    stream(
        "csc",
        "continual, twenty times over",
        "standard*20",
        "shuffled",
        200,
    ),
    stream(
        "cdc",
        "corruptions take turns after a random number of batches, twenty times over",
        "changing:standard*20",
        "shuffled",
        200,
    ),
    stream(
        "practical",
        "RoTTA's: continual, classes come and go",
        "practical",
        "correlated:0.1",
        64,
    ),
    stream(
        "recurring",
        "PeTTA's: practical, twenty times over",
        "practical*20",
        "correlated:0.1",
        64,
    ),
    StreamPreset {
        reset: Reset::PerVisit,
        ..stream(
            "note",
            "NOTE's: chunks of few classes, from the source",
            "standard",
            "note",
            64,
        )
    },
    stream(
        "class-sorted",
        "continual, class after class",
        "standard",
        "sorted",
        200,
    ),
    StreamPreset {
        reset: Reset::PerVisit,
        ..stream(
            "label-shift",
            "SAR's: one class after the other prevails, from the source",
            "standard",
            "online-shift",
            64,
        )
    },
    stream(
        "imbalanced",
        "TRIBE's GLI: practical, with rare classes",
        "practical",
        "imbalanced:100",
        64,
    ),
];

impl StreamPreset {
    /// Lists all streams that have a name.
    pub fn all() -> &'static [Self] {
        &STREAMS
    }

    /// Finds the stream of a name.
    pub fn by_name(name: &str) -> Result<&'static Self> {
        let found = STREAMS.iter().find(|stream| stream.name == name);
        found.ok_or_else(|| {
            let known: Vec<&str> = STREAMS.iter().map(|stream| stream.name).collect();
            Error::Invalid {
                what: "stream",
                problem: format!("unknown `{name}`; {}", suggestion(name, &known)),
            }
        })
    }

    /// Returns the severity of its corruptions.
    pub fn severity(&self) -> u8 {
        SEVERITY
    }

    /// Returns the order of arrival.
    pub fn order(&self) -> Order {
        let order = self.order.parse();
        order.expect("the words of streams are tested")
    }

    /// Draws the stream in text, `columns` wide: a line of domains and a line of classes. Each column is one arrival, evenly spaced over the
    /// stream. Drawn are three domains `a`, `b` and `c` with ten classes of twenty samples, in batches of ten; a gradual stream shows
    /// severities, and a stream that comes back does so three times.
    pub fn draw(&self, columns: usize) -> [String; 2] {
        const SAMPLES: usize = 20;
        const CLASSES: usize = 10;
        let few = self.corruption.replace("standard", "a,b,c");
        let few = few.replace("practical", "a,b,c").replace("*20", "*3");
        let visits = Visits::parse(Some(&few)).expect("the words of streams are tested");
        let domains = visits.domains("drawn", Some(SEVERITY));
        let config = StreamConfig::new(domains.expect("the words of streams are tested"))
            .with_order(self.order())
            .with_batch_size(10);
        // As in most data sets that are published, classes do not come in their order.
        let labels: Vec<usize> = (0..CLASSES * SAMPLES).map(|id| 7 * id % CLASSES).collect();
        let domains = config.domains.list();
        let populations = vec![Population::Labelled(&labels); domains.len()];
        let plan = config.plan(&populations, CLASSES);
        let plan = plan.expect("the words of streams are tested");
        let arrivals: Vec<Arrival> = plan.batches.concat();
        let mut lines = [String::new(), String::new()];
        for column in 0..columns {
            let arrival = arrivals[column * arrivals.len() / columns];
            let domain = &domains[arrival.domain];
            if self.corruption.starts_with("gradual") {
                let severity = domain.severity.unwrap_or_default();
                write!(lines[0], "{severity}").expect("text can be written");
            } else {
                lines[0].push_str(domain.corruption.as_deref().unwrap_or("-"));
            }
            let class = labels[arrival.id as usize];
            write!(lines[1], "{class}").expect("text can be written");
        }
        lines
    }

    /// Lists all streams that have a name in a table, as the documents show them.
    pub fn table() -> String {
        let mut text = "| stream | what it is | `--corruption` | `--order` | `--batch-size` | `--reset` |\n|---|---|---|---|---|---|\n".to_owned();
        for stream in &STREAMS {
            let Self {
                name,
                about,
                corruption,
                order,
                batch_size,
                reset,
            } = stream;
            let reset = serde_json::to_value(reset).expect("a word is plain JSON");
            let reset = reset.as_str().unwrap_or_default();
            writeln!(
                text,
                "| `{name}` | {about} | `{corruption}` | `{order}` | {batch_size} | `{reset}` |"
            )
            .expect("text can be written");
        }
        text
    }

    /// Draws all streams that have a name, as the documents show them.
    pub fn draw_all() -> String {
        let mut text = String::new();
        for stream in &STREAMS {
            let [domains, classes] = stream.draw(72);
            writeln!(text, "{:<13} domain {domains}", stream.name).expect("text can be written");
            writeln!(text, "{:<13} class  {classes}", "").expect("text can be written");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::Domains;

    #[test]
    fn every_stream_is_one_that_can_be_asked_for() {
        for stream in StreamPreset::all() {
            let visits = Visits::parse(Some(stream.corruption)).unwrap();
            let domains = visits.domains("cifar10", Some(SEVERITY)).unwrap();
            let config = StreamConfig::new(domains).with_order(stream.order());
            config.validate().unwrap();
            assert_eq!(StreamPreset::by_name(stream.name).unwrap(), stream);
        }
        let error = StreamPreset::by_name("practicle").unwrap_err().to_string();
        assert!(error.contains("did you mean `practical`?"), "{error}");
    }

    #[test]
    fn a_stream_that_changes_is_a_list_that_changes() {
        let stream = StreamPreset::by_name("cdc").unwrap();
        let domains = Visits::parse(Some(stream.corruption)).unwrap();
        let domains = domains.domains("cifar10", Some(5)).unwrap();
        assert!(matches!(domains, Domains::Changing { times: 20, domains } if domains.len() == 15));
    }

    #[test]
    fn a_drawing_shows_what_is_special_about_a_stream() {
        let draw = |name| StreamPreset::by_name(name).unwrap().draw(60);
        let changes = |line: &str| {
            let pairs = line.chars().zip(line.chars().skip(1));
            pairs.filter(|(one, next)| one != next).count()
        };
        assert_eq!(changes(&draw("continual")[0]), 2);
        assert_eq!(changes(&draw("csc")[0]), 8);
        assert!(changes(&draw("cdc")[0]) > 8);
        assert!(changes(&draw("mixed")[0]) > 20);
        let gradual = StreamPreset::by_name("gradual").unwrap().draw(54);
        assert!(gradual[0].starts_with("11223344554433221111"));
        assert!(changes(&draw("class-sorted")[1]) <= 30);
        assert!(changes(&draw("practical")[1]) < changes(&draw("continual")[1]));
        assert!(draw("imbalanced")[1].matches('0').count() > 15);
    }
}
