//! Lines over the stream: cumulative error, accepted pseudo-labels, distance to the anchors.

use std::fmt::Write as _;

use super::svg::{self, Frame, escape, image, marker, shorten, spread, stroke};
use crate::protocol::CurvePoint;

/// A line with a name.
pub(super) struct Line {
    /// The number that decides colour, dashes and mark.
    pub series: usize,
    pub name: String,
    /// Pairs of samples seen and value.
    pub points: Vec<(f64, f64)>,
    /// Pairs of samples seen and the share of runs whose gate was open; empty without a gate.
    pub open: Vec<(f64, f64)>,
}

/// What a line chart shows, and how its axis is labelled.
pub(super) struct Measure {
    pub title: &'static str,
    pub y_label: &'static str,
    pub value: fn(&CurvePoint) -> Option<f64>,
    /// Whether the axis starts at zero, or at the smallest value.
    pub from_zero: bool,
}

/// Takes the finite values of a measure from a curve.
pub(super) fn points(curve: &[CurvePoint], measure: &Measure) -> Vec<(f64, f64)> {
    let points = curve.iter().filter_map(|point| {
        let value = (measure.value)(point).filter(|value| value.is_finite())?;
        Some((point.samples as f64, value))
    });
    points.collect()
}

/// Takes from a curve where the gate was open, 1, and where it was closed, 0; nothing without a gate.
pub(super) fn gate(curve: &[CurvePoint]) -> Vec<(f64, f64)> {
    let points = curve.iter().filter_map(|point| {
        let open = f64::from(u8::from(point.gate_open?));
        Some((point.samples as f64, open))
    });
    points.collect()
}

/// Averages several curves at the places of the shortest.
pub(super) fn mean_of(curves: &[Vec<(f64, f64)>]) -> Vec<(f64, f64)> {
    let end = |curve: &Vec<(f64, f64)>| curve.last().map_or(0.0, |point| point.0);
    let shortest = curves.iter().min_by(|a, b| end(a).total_cmp(&end(b)));
    let places = shortest.into_iter().flatten().map(|point| point.0);
    places
        .map(|x| {
            let sum: f64 = curves.iter().map(|curve| value_at(curve, x)).sum();
            (x, sum / curves.len() as f64)
        })
        .collect()
}

/// Interpolates a curve linearly; before the first point and after the last it is constant.
fn value_at(curve: &[(f64, f64)], x: f64) -> f64 {
    let after = curve.partition_point(|point| point.0 < x);
    match (after.checked_sub(1).map(|i| curve[i]), curve.get(after)) {
        (Some(before), Some(after)) if after.0 > x => {
            let share = (x - before.0) / (after.0 - before.0);
            before.1 + share * (after.1 - before.1)
        }
        (_, Some(after)) => after.1,
        (Some(before), None) => before.1,
        (None, None) => 0.0,
    }
}

/// Returns the range of all values with a little air.
fn range(lines: &[Line], from_zero: bool) -> (f64, f64) {
    let values = || {
        lines
            .iter()
            .flat_map(|line| &line.points)
            .map(|point| point.1)
    };
    let high = values().fold(f64::MIN, f64::max);
    let low = values().fold(f64::MAX, f64::min);
    let air = 0.06 * (high - low).max(1e-9 + high.abs() * 0.02);
    let low = if from_zero { 0.0 } else { (low - air).max(0.0) };
    (low, high + air)
}

/// Draws a chart whose lines have their names at the end.
pub(super) fn chart(lines: &[Line], measure: &Measure) -> String {
    let (width, height) = (390.0, 270.0_f64.max(50.0 + 14.0 * lines.len() as f64));
    let last = lines.iter().filter_map(|line| line.points.last());
    let longest = last.map(|point| point.0).fold(0.0, f64::max);
    let frame = Frame {
        left: 32.0,
        top: 26.0,
        right: width - 118.0,
        bottom: height - 38.0,
        x: (0.0, longest),
        y: range(lines, measure.from_zero),
    };
    let mut text = frame.axes("samples seen", measure.y_label) + &gates(&frame, lines);
    for line in lines {
        text += &path(&frame, line);
        text += &marks(&frame, line);
    }
    let ends: Vec<(f64, f64)> = lines
        .iter()
        .map(|line| line.points.last().copied().unwrap_or_default())
        .map(|(x, y)| (frame.at_x(x), frame.at_y(y)))
        .collect();
    let wanted: Vec<f64> = ends.iter().map(|end| end.1).collect();
    let places = spread(&wanted, 14.0, frame.top, frame.bottom);
    for ((line, end), y) in lines.iter().zip(ends).zip(places) {
        let x = frame.right + 18.0;
        let _ = writeln!(
            text,
            "<path class=\"leader\" d=\"M{:.1} {:.1}L{:.1} {y:.1}\"/>{}<text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            end.0 + 2.0,
            end.1,
            x - 5.0,
            marker(line.series, x, y),
            x + 7.0,
            y + 4.0,
            escape(&shorten(&line.name, 15))
        );
    }
    image(width, height, measure.title, &describe(lines), &text)
}

/// Draws a small chart without names, on its own scale.
pub(super) fn small_chart(lines: &[Line], measure: &Measure, title: &str) -> String {
    let y = range(lines, measure.from_zero);
    let longest = lines.iter().filter_map(|line| line.points.last());
    let frame = Frame {
        left: 30.0,
        top: 6.0,
        right: 156.0,
        bottom: 92.0,
        x: (0.0, longest.map(|point| point.0).fold(0.0, f64::max)),
        y,
    };
    let mut text = String::from("<g class=\"thin\">\n");
    for tick in svg::ticks(y.0, y.1, 3) {
        let place = frame.at_y(tick);
        let _ = writeln!(
            text,
            "<path class=\"grid\" d=\"M30 {place:.1}H156\"/><text class=\"tick\" x=\"26\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            place + 4.0,
            svg::plain(tick)
        );
    }
    text += &gates(&frame, lines);
    for line in lines {
        text += &path(&frame, line);
    }
    text += "</g>\n";
    let title = format!("{}: {title}", measure.title);
    image(160.0, 98.0, &title, &describe(lines), &text)
}

/// Lists the names and marks of lines, for charts without names.
pub(super) fn legend(lines: &[Line]) -> String {
    let mut text = String::from("<ul class=\"legend\">\n");
    for line in lines {
        let _ = writeln!(
            text,
            "<li><svg viewBox=\"0 0 36 12\" aria-hidden=\"true\"><path {} d=\"M1 6H35\"/>{}</svg>{}</li>",
            stroke(line.series),
            marker(line.series, 18.0, 6.0),
            escape(&line.name)
        );
    }
    text + "</ul>\n"
}

fn path(frame: &Frame, line: &Line) -> String {
    let mut steps = String::new();
    for (index, (x, y)) in line.points.iter().enumerate() {
        let command = if index == 0 { 'M' } else { 'L' };
        let _ = write!(
            steps,
            "{command}{:.1} {:.1}",
            frame.at_x(*x),
            frame.at_y(*y)
        );
    }
    let name = escape(&line.name);
    let stroke = stroke(line.series);
    format!("<path {stroke} d=\"{steps}\"><title>{name}</title></path>\n")
}

/// Draws a bar for each line with a gate, at the top of the frame, where the gate was open; the paler, the fewer runs had it open.
fn gates(frame: &Frame, lines: &[Line]) -> String {
    let mut text = String::new();
    let gated = lines.iter().filter(|line| !line.open.is_empty());
    for (place, line) in gated.enumerate() {
        let y = frame.top + 2.0 + 4.0 * place as f64;
        let starts = std::iter::once(0.0).chain(line.open.iter().map(|point| point.0));
        for (start, &(end, share)) in starts.zip(&line.open) {
            if share > 0.0 {
                let _ = writeln!(
                    text,
                    "<g opacity=\"{share:.2}\"><path {} d=\"M{:.1} {y:.1}H{:.1}\"><title>{}: gate open</title></path></g>",
                    stroke(line.series),
                    frame.at_x(start),
                    frame.at_x(end),
                    escape(&line.name)
                );
            }
        }
    }
    text
}

/// Draws a few marks along a line, at other places for every series.
fn marks(frame: &Frame, line: &Line) -> String {
    let count = line.points.len();
    let every = (count / 5).max(1);
    let first = (line.series * every / 5) % every;
    let chosen = line.points.iter().skip(first).step_by(every);
    let mut text: String = chosen
        .map(|(x, y)| marker(line.series, frame.at_x(*x), frame.at_y(*y)))
        .collect();
    text.push('\n');
    text
}

fn describe(lines: &[Line]) -> String {
    let ends = lines.iter().filter_map(|line| {
        let (samples, value) = line.points.last()?;
        Some(format!(
            "{} ends at {value:.2} after {samples} samples",
            line.name
        ))
    });
    ends.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_is_drawn_where_it_was_open() {
        let line = Line {
            series: 0,
            name: "gated".to_owned(),
            points: vec![(10.0, 1.0), (20.0, 3.0), (30.0, 2.0)],
            open: vec![(10.0, 0.0), (20.0, 0.5), (30.0, 1.0)],
        };
        let measure = Measure {
            title: "error",
            y_label: "%",
            value: |_| None,
            from_zero: true,
        };
        let text = chart(&[line], &measure);
        assert_eq!(text.matches("gate open").count(), 2);
        assert!(text.contains("opacity=\"0.50\""), "{text}");
    }

    #[test]
    fn the_mean_of_curves_is_taken_at_the_same_places() {
        let a = vec![(10.0, 1.0), (20.0, 3.0)];
        let b = vec![(5.0, 5.0), (15.0, 5.0), (25.0, 7.0)];
        assert_eq!(mean_of(std::slice::from_ref(&a)), a);
        // b is 5 at 10, and 6 at 20.
        assert_eq!(mean_of(&[a, b]), [(10.0, 3.0), (20.0, 4.5)]);
    }
}
