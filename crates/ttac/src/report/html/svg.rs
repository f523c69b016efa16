//! Small pieces of SVG. Colours are classes of the style sheet, which has values for light and dark.

use std::fmt::Write as _;

/// The dashes of lines, so that colour alone never tells them apart.
const DASHES: [&str; 5] = ["", "6 3", "2 2.5", "9 3 2 3", "5 2 1.5 2 1.5 2"];

/// The number of colours in the style sheet.
const COLOURS: usize = 8;

/// Escapes text so that it is safe between tags and in attributes.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            c => safe.push(c),
        }
    }
    safe
}

/// Cuts text to at most so many characters.
pub fn shorten(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

/// Writes an image with a name and a longer description for those who do not see it. It grows with its
/// place, to half again its size.
pub fn image(width: f64, height: f64, title: &str, description: &str, content: &str) -> String {
    let (title, description) = (escape(title), escape(description));
    let most = 1.5 * width;
    format!(
        "<svg viewBox=\"0 0 {width:.0} {height:.0}\" style=\"max-width:{most:.0}px\" role=\"img\" aria-label=\"{title}\"><title>{title}</title><desc>{description}</desc>\n{content}</svg>\n"
    )
}

/// Returns the class that gives the colour of a series.
pub fn colour(series: usize) -> String {
    format!("s{}", series % COLOURS)
}

/// Returns the attributes of the line of a series.
pub fn stroke(series: usize) -> String {
    let dash = DASHES[series % DASHES.len()];
    let colour = colour(series);
    if dash.is_empty() {
        return format!("class=\"line {colour}\"");
    }
    format!("class=\"line {colour}\" stroke-dasharray=\"{dash}\"")
}

/// Draws the mark of a series at a place.
pub fn marker(series: usize, x: f64, y: f64) -> String {
    let class = format!("class=\"mark {}\"", colour(series));
    let path = match series % COLOURS {
        0 => return format!("<circle {class} cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.6\"/>"),
        1 => "m-3.3-3.3h6.6v6.6h-6.6z",
        2 => "m0-4.4l4.2 7.4h-8.4z",
        3 => "m0-4.6l4.6 4.6l-4.6 4.6l-4.6-4.6z",
        4 => "m-1.2-4.2h2.4v3h3v2.4h-3v3h-2.4v-3h-3v-2.4h3z",
        5 => "m0 4.4l4.2-7.4h-8.4z",
        6 => {
            "m-2.2-4.2l2.2 2.2l2.2-2.2l2 2l-2.2 2.2l2.2 2.2l-2 2l-2.2-2.2l-2.2 2.2l-2-2l2.2-2.2l-2.2-2.2z"
        }
        _ => "m0-4.8l1.3 3.2l3.4.2l-2.6 2.2l.9 3.3l-3-1.9l-3 1.9l.9-3.3l-2.6-2.2l3.4-.2z",
    };
    format!("<path {class} d=\"M{x:.1} {y:.1}{path}\"/>")
}

/// Returns round numbers in a range, about so many.
pub fn ticks(low: f64, high: f64, about: usize) -> Vec<f64> {
    let raw = (high - low) / about as f64;
    if !(raw.is_finite() && raw > 0.0) {
        return vec![low];
    }
    let power = 10_f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|m| m * power);
    let step = step.into_iter().find(|step| *step >= raw * 0.999);
    let step = step.unwrap_or(10.0 * power);
    let first = (low / step - 1e-9).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    (first..=last).map(|i| i as f64 * step).collect()
}

/// Writes a number without needless zeros, thousands as `k`.
pub fn plain(value: f64) -> String {
    let (value, unit) = if value.abs() >= 1000.0 {
        (value / 1000.0, "k")
    } else {
        (value, "")
    };
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text}{unit}")
}

/// The part of an image that shows values, and which values it shows.
#[derive(Clone, Copy)]
pub struct Frame {
    pub left: f64,
    pub top: f64,
    pub right: f64,
    pub bottom: f64,
    pub x: (f64, f64),
    pub y: (f64, f64),
}

impl Frame {
    pub fn at_x(&self, value: f64) -> f64 {
        let share = (value - self.x.0) / (self.x.1 - self.x.0).max(f64::MIN_POSITIVE);
        self.left + share * (self.right - self.left)
    }

    pub fn at_y(&self, value: f64) -> f64 {
        let share = (value - self.y.0) / (self.y.1 - self.y.0).max(f64::MIN_POSITIVE);
        self.bottom - share * (self.bottom - self.top)
    }

    /// Draws both axes with their ticks, and says what they measure.
    pub fn axes(&self, x_label: &str, y_label: &str) -> String {
        let mut text = String::new();
        let (left, right, bottom) = (self.left, self.right, self.bottom);
        for tick in ticks(self.y.0, self.y.1, 5) {
            let y = self.at_y(tick);
            let _ = writeln!(
                text,
                "<path class=\"grid\" d=\"M{left:.1} {y:.1}H{right:.1}\"/><text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                left - 6.0,
                y + 4.0,
                plain(tick)
            );
        }
        for tick in ticks(self.x.0, self.x.1, 4) {
            let x = self.at_x(tick);
            let _ = writeln!(
                text,
                "<path class=\"axis\" d=\"M{x:.1} {bottom:.1}v4\"/><text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom + 16.0,
                plain(tick)
            );
        }
        let _ = writeln!(
            text,
            "<path class=\"axis\" d=\"M{left:.1} {bottom:.1}H{right:.1}\"/>\n<text class=\"label\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n<text class=\"label\" x=\"4\" y=\"{:.1}\">{}</text>",
            f64::midpoint(left, right),
            bottom + 32.0,
            escape(x_label),
            self.top - 10.0,
            escape(y_label)
        );
        text
    }
}

/// Moves places apart until neighbours have a gap, as little as possible, within bounds.
pub fn spread(places: &[f64], gap: f64, low: f64, high: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by(|&a, &b| places[a].total_cmp(&places[b]));
    // Groups of touching labels, each around the mean of where its members want to be.
    let mut groups: Vec<(f64, usize)> = Vec::new();
    for &index in &order {
        let mut group = (places[index], 1);
        while let Some(&(centre, count)) = groups.last() {
            let reach = gap * (count + group.1) as f64 / 2.0;
            if group.0 - centre >= reach {
                break;
            }
            let whole = count + group.1;
            group.0 = (centre * count as f64 + group.0 * group.1 as f64) / whole as f64;
            group.1 = whole;
            groups.pop();
        }
        let half = gap * (group.1 - 1) as f64 / 2.0;
        group.0 = group.0.min(high - half).max(low + half);
        groups.push(group);
    }
    let mut spread = vec![0.0; places.len()];
    let mut next = order.into_iter();
    for (centre, count) in groups {
        let first = centre - gap * (count - 1) as f64 / 2.0;
        for place in 0..count {
            let index = next.next().expect("groups hold all places");
            spread[index] = first + gap * place as f64;
        }
    }
    spread
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(ticks(0.0, 50.0, 5), [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]);
        assert_eq!(ticks(0.0, 0.9, 3), [0.0, 0.5]);
        assert_eq!(ticks(3.0, 3.0, 4), [3.0]);
        assert_eq!(plain(2500.0), "2.5k");
        assert_eq!(plain(10_000.0), "10k");
        assert_eq!(plain(0.25), "0.25");
        assert_eq!(plain(0.0), "0");
    }

    #[test]
    fn labels_are_moved_apart_and_stay_inside() {
        let places = spread(&[10.0, 11.0, 50.0, 99.0, 98.0], 10.0, 0.0, 100.0);
        let mut sorted = places.clone();
        sorted.sort_by(f64::total_cmp);
        assert!(
            sorted.windows(2).all(|pair| pair[1] - pair[0] >= 9.999),
            "{places:?}"
        );
        assert!(sorted[0] >= 0.0 && sorted[4] <= 100.0);
        assert_eq!(places[2], 50.0);
        assert!(places[3] > places[4], "the order is kept");
    }

    #[test]
    fn markup_in_names_is_text() {
        assert_eq!(escape("<b a=\"1\">&"), "&lt;b a=&quot;1&quot;&gt;&amp;");
        assert_eq!(shorten("automobile", 5), "auto…");
    }
}
