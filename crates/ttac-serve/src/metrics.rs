//! Metrics in the text format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::api::{Fate, Health, Lane, Mode, Refusal, Reply, Service, StreamStatus};

/// The upper bounds of the classes of durations, in seconds.
const BOUNDS: [f64; 12] = [
    0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.125, 0.25, 0.5, 1.0, 5.0,
];

/// The most streams that have metrics of their own: those with the most accepted images.
const STREAMS: usize = 64;

/// What requests came to, as the transports see them.
#[derive(Debug, Default)]
pub struct Counters(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    /// By transport and status.
    requests: BTreeMap<(&'static str, u16), u64>,
    /// By model.
    seconds: BTreeMap<String, Durations>,
    /// By model and what became of the images.
    images: BTreeMap<(String, &'static str), u64>,
}

#[derive(Debug, Default)]
struct Durations {
    counts: [u64; BOUNDS.len()],
    count: u64,
    sum: f64,
}

impl Counters {
    /// Counts a request by its status.
    pub fn request(&self, transport: &'static str, status: u16) {
        *self
            .counted()
            .requests
            .entry((transport, status))
            .or_default() += 1;
    }

    /// Counts a request that was answered.
    pub fn answer(&self, model: &str, reply: &Reply, took: Duration) {
        let mut counted = self.counted();
        let key = (model.to_owned(), reply.fate.name());
        *counted.images.entry(key).or_default() += reply.classes.len() as u64;
        let durations = counted.seconds.entry(model.to_owned()).or_default();
        let seconds = took.as_secs_f64();
        durations.count += 1;
        durations.sum += seconds;
        for (count, bound) in durations.counts.iter_mut().zip(BOUNDS) {
            *count += u64::from(seconds <= bound);
        }
    }

    fn counted(&self) -> std::sync::MutexGuard<'_, Counted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes all metrics.
pub fn render(service: &dyn Service, counters: &Counters) -> Result<String, Refusal> {
    let mut text = Text::default();
    text.family("ttac_build_info", "gauge", "The version of the program.");
    text.sample(
        "ttac_build_info",
        &[("version", env!("CARGO_PKG_VERSION"))],
        1.0,
    );
    text.family("ttac_ready", "gauge", "Whether requests are taken.");
    text.sample("ttac_ready", &[], f64::from(u8::from(service.ready())));
    of_requests(&mut text, counters);
    let models = service.models();
    let names: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
    of_lanes(&mut text, service, &names)?;
    let mut streams = Vec::new();
    for name in &names {
        let mut found = service.streams(name)?;
        found.sort_by(|a, b| {
            b.accepted
                .cmp(&a.accepted)
                .then_with(|| a.stream.cmp(&b.stream))
        });
        found.truncate(STREAMS);
        streams.extend(found.into_iter().map(|stream| (*name, stream)));
    }
    of_streams(&mut text, &streams);
    Ok(text.0)
}

fn of_requests(text: &mut Text, counters: &Counters) {
    let counted = counters.counted();
    text.family(
        "ttac_requests_total",
        "counter",
        "Requests by transport and status.",
    );
    for ((transport, status), count) in &counted.requests {
        let labels = [("transport", *transport), ("code", &status.to_string())];
        text.sample("ttac_requests_total", &labels, *count as f64);
    }
    text.family(
        "ttac_request_seconds",
        "histogram",
        "How long answers took, from the request to the reply.",
    );
    for (model, durations) in &counted.seconds {
        for (count, bound) in durations.counts.iter().zip(BOUNDS) {
            let labels = [("model", model.as_str()), ("le", &bound.to_string())];
            text.sample("ttac_request_seconds_bucket", &labels, *count as f64);
        }
        let all = [("model", model.as_str()), ("le", "+Inf")];
        text.sample("ttac_request_seconds_bucket", &all, durations.count as f64);
        text.sample("ttac_request_seconds_sum", &all[..1], durations.sum);
        text.sample(
            "ttac_request_seconds_count",
            &all[..1],
            durations.count as f64,
        );
    }
    text.family(
        "ttac_skipped_images_total",
        "counter",
        "Images that were answered and will not be learned from.",
    );
    let accepted = Fate::Accepted.name();
    for ((model, why), count) in counted
        .images
        .iter()
        .filter(|((_, why), _)| *why != accepted)
    {
        text.sample(
            "ttac_skipped_images_total",
            &[("model", model), ("why", why)],
            *count as f64,
        );
    }
}

fn of_lanes(text: &mut Text, service: &dyn Service, models: &[&str]) -> Result<(), Refusal> {
    let mut lanes = Vec::new();
    for model in models {
        for lane in [Lane::Source, Lane::Adapted] {
            let name = if lane == Lane::Source {
                "source"
            } else {
                "adapted"
            };
            lanes.push((*model, name, service.statistics(model, lane)?));
        }
    }
    let mut family =
        |name: &str, kind: &str, help: &str, value: &dyn Fn(&crate::api::Statistics) -> f64| {
            text.family(name, kind, help);
            for (model, lane, statistics) in &lanes {
                text.sample(name, &[("model", model), ("lane", lane)], value(statistics));
            }
        };
    family(
        "ttac_images_total",
        "counter",
        "Images that were answered.",
        &|s| s.images as f64,
    );
    family(
        "ttac_answers_total",
        "counter",
        "Requests that were answered.",
        &|s| s.success.0 as f64,
    );
    family(
        "ttac_refusals_total",
        "counter",
        "Requests that were refused.",
        &|s| s.fail.0 as f64,
    );
    family(
        "ttac_passes_total",
        "counter",
        "Passes of the network.",
        &|s| s.passes.values().map(|(count, _)| *count as f64).sum(),
    );
    family(
        "ttac_predict_seconds_total",
        "counter",
        "Time that passes took.",
        &|s| s.passes.values().map(|(_, time)| time.as_secs_f64()).sum(),
    );
    family(
        "ttac_queue_seconds_total",
        "counter",
        "Time that requests waited for their pass.",
        &|s| s.queue.1.as_secs_f64(),
    );
    Ok(())
}

fn of_streams(text: &mut Text, streams: &[(&str, StreamStatus)]) {
    let mut family = |name: &str, kind: &str, help: &str, value: &dyn Fn(&StreamStatus) -> f64| {
        text.family(name, kind, help);
        for (model, stream) in streams {
            text.sample(
                name,
                &[("model", model), ("stream", &stream.stream)],
                value(stream),
            );
        }
    };
    family(
        "ttac_accepted_images_total",
        "counter",
        "Images that came into the log.",
        &|s| s.accepted as f64,
    );
    family(
        "ttac_learned_images_total",
        "counter",
        "Images that were learned from.",
        &|s| s.learned as f64,
    );
    family(
        "ttac_pending",
        "gauge",
        "Images that wait to be learned from.",
        &|s| s.pending as f64,
    );
    family(
        "ttac_weights_version",
        "gauge",
        "How many times weights were published.",
        &|s| s.version as f64,
    );
    family("ttac_log_bytes", "gauge", "The size of the log.", &|s| {
        s.log_bytes as f64
    });
    family(
        "ttac_resident_bytes",
        "gauge",
        "The memory of the stream, about.",
        &|s| s.memory_bytes as f64,
    );
    family(
        "ttac_labels_total",
        "counter",
        "Late labels on which source and adapted weights differ.",
        &|s| (s.labels.0 + s.labels.1) as f64,
    );
    family(
        "ttac_label_evidence",
        "gauge",
        "Evidence of the labels that the adapted weights are better.",
        &|s| s.labels.2,
    );
    family(
        "ttac_rollbacks_total",
        "counter",
        "How often the stream went back to weights of before, or to the source.",
        &|s| s.rollbacks as f64,
    );
    text.family("ttac_alarms_total", "counter", "Alarms by guard.");
    for (model, stream) in streams {
        for (guard, count) in &stream.alarms {
            let labels = [
                ("model", *model),
                ("stream", stream.stream.as_str()),
                ("guard", guard.as_str()),
            ];
            text.sample("ttac_alarms_total", &labels, *count as f64);
        }
    }
    let mut chosen = |name: &str,
                      label: &str,
                      help: &str,
                      all: &[&str],
                      is: &dyn Fn(&StreamStatus) -> &'static str| {
        text.family(name, "gauge", help);
        for (model, stream) in streams {
            for one in all {
                let labels = [
                    ("model", *model),
                    ("stream", stream.stream.as_str()),
                    (label, *one),
                ];
                text.sample(name, &labels, f64::from(u8::from(is(stream) == *one)));
            }
        }
    };
    let healths = Health::ALL.map(Health::name);
    chosen(
        "ttac_health",
        "state",
        "The health that the guards see.",
        &healths,
        &|s| s.health.name(),
    );
    let modes = [
        Mode::Off,
        Mode::Shadow,
        Mode::Canary(0.0),
        Mode::Active,
        Mode::Frozen(None),
    ]
    .map(Mode::name);
    chosen(
        "ttac_mode",
        "mode",
        "The mode that the operator chose.",
        &modes,
        &|s| s.mode.name(),
    );
    for (name, help) in [
        ("ttac_guard", "The value of a guard."),
        ("ttac_guard_bound", "The bound of a guard."),
        ("ttac_guard_alarmed", "Whether a guard is beyond its bound."),
    ] {
        text.family(name, "gauge", help);
        for (model, stream) in streams {
            for guard in &stream.guards {
                let value = match name {
                    "ttac_guard" => guard.value,
                    "ttac_guard_bound" => Some(guard.bound),
                    _ => Some(f64::from(u8::from(guard.alarmed))),
                };
                let labels = [
                    ("model", *model),
                    ("stream", stream.stream.as_str()),
                    ("guard", guard.name.as_str()),
                ];
                if let Some(value) = value {
                    text.sample(name, &labels, value);
                }
            }
        }
    }
}

/// Lines of the text format.
#[derive(Default)]
struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.0.push_str(name);
        for (at, (label, value)) in labels.iter().enumerate() {
            let value = value
                .replace('\\', r"\\")
                .replace('"', "\\\"")
                .replace('\n', r"\n");
            let before = if at == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{before}{label}=\"{value}\"");
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        let value = if value.is_nan() {
            "NaN".to_owned()
        } else if value.is_infinite() {
            if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned()
        } else {
            value.to_string()
        };
        let _ = writeln!(self.0, " {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut text = Text::default();
        text.sample("a", &[("b", "c\"\\\n"), ("d", "é")], f64::INFINITY);
        text.sample("e", &[], 0.5);
        assert_eq!(text.0, "a{b=\"c\\\"\\\\\\n\",d=\"é\"} +Inf\ne 0.5\n");
    }
}
