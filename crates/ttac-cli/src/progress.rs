//! Progress on standard error: a bar on a terminal, now and then a line elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Time between two plain lines.
const PLAIN_INTERVAL: Duration = Duration::from_secs(30);

/// How far something long has come.
pub struct Progress {
    bar: ProgressBar,
    what: &'static str,
    /// When the last plain line was printed; none on a terminal.
    plain: Option<Instant>,
}

/// What is counted.
#[derive(Clone, Copy)]
pub enum Unit {
    Bytes,
    Images,
    Cells,
}

impl Progress {
    pub fn new(what: &'static str, total: u64, unit: Unit) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let target = if terminal {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let template = match unit {
            Unit::Bytes => "{msg} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
            Unit::Cells => "{msg} {wide_bar} {pos} of {len} cells, {eta} left",
            Unit::Images => "{msg} {wide_bar} {pos} of {len} images, {per_sec}, {eta} left",
        };
        let style = ProgressStyle::with_template(template).expect("the template is a constant");
        let bar = ProgressBar::with_draw_target(Some(total), target).with_style(style);
        bar.set_message(what);
        Self {
            bar,
            what,
            plain: (!terminal).then(Instant::now),
        }
    }

    /// Starts at a later point, for something that is resumed.
    pub fn at(self, position: u64) -> Self {
        self.bar.set_position(position);
        self.bar.reset_eta();
        self
    }

    /// Shows what is happening, before the bar.
    pub fn note(&self, text: String) {
        self.bar.set_message(text);
    }

    /// Prints a line that stays.
    pub fn line(&self, text: &str) {
        if self.plain.is_some() {
            say(text);
        } else {
            self.bar.println(text);
        }
    }

    pub fn advance(&mut self, by: u64) {
        self.bar.inc(by);
        let due = |last: &Instant| last.elapsed() > PLAIN_INTERVAL;
        if self.plain.as_ref().is_some_and(due) {
            self.plain = Some(Instant::now());
            let (at, total) = (self.bar.position(), self.bar.length().unwrap_or(0));
            say(&format!(
                "{}: {} %, {} left",
                self.what,
                100 * at / total.max(1),
                HumanDuration(self.bar.eta())
            ));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Prints a line for people.
#[expect(clippy::print_stderr, reason = "the one place for messages to people")]
pub fn say(line: &str) {
    eprintln!("{line}");
}
