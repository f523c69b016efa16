//! Scatter plots: cost against error, and features in the plane.

use std::fmt::Write as _;

use super::svg::{Frame, colour, escape, image, marker, shorten};

/// A point with the name of its row.
pub(super) struct Point {
    pub series: usize,
    pub name: String,
    pub x: f64,
    pub y: f64,
}

/// Draws points with their names beside them.
pub(super) fn named_points(points: &[Point], title: &str, x_label: &str, y_label: &str) -> String {
    let (width, height) = (390.0, 290.0);
    let largest = |value: fn(&Point) -> f64| points.iter().map(value).fold(0.0, f64::max);
    let frame = Frame {
        left: 32.0,
        top: 26.0,
        right: width - 16.0,
        bottom: height - 38.0,
        x: (0.0, 1.15 * largest(|point| point.x).max(1e-9)),
        y: (0.0, 1.08 * largest(|point| point.y).max(1e-9)),
    };
    let mut text = frame.axes(x_label, y_label);
    let places: Vec<(f64, f64)> = points
        .iter()
        .map(|point| (frame.at_x(point.x), frame.at_y(point.y)))
        .collect();
    let mut taken: Vec<Area> = places
        .iter()
        .map(|&(x, y)| Area::around(x, y, 5.0, 5.0))
        .collect();
    for (point, &(x, y)) in points.iter().zip(&places) {
        let name = shorten(&point.name, 18);
        let (label, leader) = free_place(&name, x, y, &frame, &taken);
        if leader {
            let _ = write!(
                text,
                "<path class=\"leader\" d=\"M{x:.1} {y:.1}L{:.1} {:.1}\"/>",
                label.nearest_x(x),
                f64::midpoint(label.top, label.bottom)
            );
        }
        let (anchor, edge) = if label.right < x {
            ("end", label.right)
        } else {
            ("start", label.left)
        };
        let _ = writeln!(
            text,
            "{}<text x=\"{edge:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
            marker(point.series, x, y),
            label.bottom - 3.0,
            escape(&name)
        );
        taken.push(label);
    }
    let values = points
        .iter()
        .map(|point| format!("{}: {:.2}, error {:.2} %", point.name, point.x, point.y));
    let description = values.collect::<Vec<_>>().join("; ");
    image(width, height, title, &description, &text)
}

/// A rectangle of the image.
#[derive(Clone, Copy)]
struct Area {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Area {
    fn around(x: f64, y: f64, half_width: f64, half_height: f64) -> Self {
        Self {
            left: x - half_width,
            right: x + half_width,
            top: y - half_height,
            bottom: y + half_height,
        }
    }

    fn meets(&self, other: &Self) -> bool {
        self.left < other.right
            && other.left < self.right
            && self.top < other.bottom
            && other.top < self.bottom
    }

    fn nearest_x(&self, x: f64) -> f64 {
        x.clamp(self.left - 2.0, self.right + 2.0)
    }
}

/// Finds room for a name near a point, and tells whether it is so far away that it needs a line.
fn free_place(name: &str, x: f64, y: f64, frame: &Frame, taken: &[Area]) -> (Area, bool) {
    let half_width = 3.3 * name.chars().count() as f64 + 2.0;
    let beside = half_width + 8.0;
    let mut choices = Vec::new();
    for far in [0.0, 14.0, -14.0, 28.0, -28.0, 42.0, -42.0, 56.0, -56.0] {
        let away = if far == 0.0 { 0.0 } else { 8.0 };
        choices.push((x + beside + away, y + far, far != 0.0));
        choices.push((x - beside - away, y + far, far != 0.0));
    }
    let areas = choices
        .iter()
        .map(|&(cx, cy, far)| (Area::around(cx, cy, half_width, 7.0), far));
    let fits = |area: &Area| {
        area.left >= frame.left
            && area.right <= frame.right + 14.0
            && area.top >= frame.top - 6.0
            && area.bottom <= frame.bottom
            && !taken.iter().any(|other| other.meets(area))
    };
    let mut areas = areas
        .clone()
        .filter(|(area, _)| fits(area))
        .chain(areas.take(1));
    areas.next().expect("the first choice is there in any case")
}

/// Returns the letter of a class, so that no colour is needed to tell classes apart.
pub(super) fn letter(class: usize) -> char {
    let letters = ('a'..='z').chain('A'..='Z').chain('0'..='9');
    letters.clone().nth(class % letters.count()).unwrap_or('?')
}

/// Draws places in the plane, each with the letter of its class.
pub(super) fn letters(places: &[[f64; 2]], labels: &[usize], title: &str) -> String {
    let side = 340.0;
    let range = |axis: usize| {
        let values = || places.iter().map(|place| place[axis]);
        (
            values().fold(f64::MAX, f64::min),
            values().fold(f64::MIN, f64::max),
        )
    };
    let frame = Frame {
        left: 10.0,
        top: 10.0,
        right: side - 10.0,
        bottom: side - 10.0,
        x: range(0),
        y: range(1),
    };
    let mut text = format!(
        "<rect class=\"frame\" x=\".5\" y=\".5\" width=\"{0}\" height=\"{0}\"/>\n",
        side - 1.0
    );
    for (place, &class) in places.iter().zip(labels) {
        let _ = writeln!(
            text,
            "<text class=\"letter {}\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            colour(class),
            frame.at_x(place[0]),
            frame.at_y(place[1]) + 4.0,
            letter(class)
        );
    }
    let description = format!(
        "{} samples in the plane by t-SNE, each the letter of its class",
        places.len()
    );
    image(side, side, title, &description, &text)
}

/// Lists which letter is which class.
pub(super) fn letter_legend(classes: &[String]) -> String {
    let mut text = String::from("<ul class=\"legend letters\">\n");
    for (class, name) in classes.iter().enumerate() {
        let _ = writeln!(
            text,
            "<li><svg viewBox=\"0 0 14 14\" aria-hidden=\"true\"><text class=\"letter {}\" x=\"7\" y=\"11\">{}</text></svg>{}</li>",
            colour(class),
            letter(class),
            escape(name)
        );
    }
    text + "</ul>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_cover_each_other() {
        let point = |series, x| Point {
            series,
            name: format!("method {series}"),
            x,
            y: 30.0,
        };
        let points: Vec<Point> = (0..6).map(|i| point(i, 1.0 + 0.01 * i as f64)).collect();
        let text = named_points(&points, "cost", "x", "y");
        let attribute = |line: &str, name: &str| -> f64 {
            let rest = line.rsplit(&format!(" {name}=\"")).next().unwrap();
            rest.split('"').next().unwrap().parse().unwrap()
        };
        let labels: Vec<(f64, f64)> = text
            .lines()
            .filter(|line| line.contains("class=\"mark"))
            .map(|line| (attribute(line, "x"), attribute(line, "y")))
            .collect();
        assert_eq!(labels.len(), 6);
        for (i, a) in labels.iter().enumerate() {
            for b in &labels[..i] {
                assert!(
                    (a.0 - b.0).abs() > 50.0 || (a.1 - b.1).abs() > 12.0,
                    "{a:?} {b:?}"
                );
            }
        }
    }

    #[test]
    fn classes_have_letters() {
        assert_eq!([0, 9, 26, 52, 62].map(letter), ['a', 'j', 'A', '0', 'a']);
    }
}
