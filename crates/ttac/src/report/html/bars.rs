//! Bar charts of errors side by side.

use std::fmt::Write as _;

use super::svg::{colour, escape, image, shorten};

/// A bar: a value with a name.
pub(super) struct Bar {
    pub series: usize,
    pub name: String,
    pub value: f64,
    /// Standard deviation, if there were several seeds.
    pub deviation: Option<f64>,
}

/// Draws horizontal bars with their names and values, on a scale that ends at `largest`.
pub(super) fn bars(bars: &[Bar], title: &str, largest: f64) -> String {
    let (left, right) = (112.0, 296.0);
    let height = 20.0 * bars.len() as f64 + 4.0;
    let scale = (right - left) / largest.max(f64::MIN_POSITIVE);
    let mut text = String::new();
    for (index, bar) in bars.iter().enumerate() {
        let y = 20.0 * index as f64 + 3.0;
        let end = left + bar.value * scale;
        let mut after = end;
        let mut value = format!("{:.2}", bar.value);
        let _ = write!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text><rect class=\"bar {}\" x=\"{left}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"14\" rx=\"1\"/>",
            left - 6.0,
            y + 11.0,
            escape(&shorten(&bar.name, 16)),
            colour(bar.series),
            (end - left).max(0.5)
        );
        if let Some(deviation) = bar.deviation {
            let half = deviation * scale;
            after = end + half;
            value = format!("{value} ± {deviation:.2}");
            let _ = write!(
                text,
                "<path class=\"whisker\" d=\"M{:.1} {:.1}H{after:.1}m0-4v8\"/>",
                (end - half).max(left),
                y + 7.0
            );
        }
        let _ = writeln!(
            text,
            "<text class=\"value\" x=\"{:.1}\" y=\"{:.1}\">{value}</text>",
            after + 5.0,
            y + 11.0
        );
    }
    let values = bars
        .iter()
        .map(|bar| format!("{} {:.2}", bar.name, bar.value));
    let description = values.collect::<Vec<_>>().join("; ");
    let width = if bars.iter().any(|bar| bar.deviation.is_some()) {
        390.0
    } else {
        340.0
    };
    image(width, height, title, &description, &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_say_their_values() {
        let bar = |series, name: &str, value, deviation| Bar {
            series,
            name: name.to_owned(),
            value,
            deviation,
        };
        let two = [
            bar(0, "TEST", 40.0, None),
            bar(1, "TTAC <&>", 20.0, Some(1.0)),
        ];
        insta::assert_snapshot!(bars(&two, "snow", 40.0));
    }
}
