//! Confusion matrices: which class is taken for which.

use std::fmt::Write as _;

use super::svg::{escape, image, shorten};

/// The most classes whose matrix can still be read.
pub(super) const MOST_CLASSES: usize = 30;

/// The side of a cell in pixels.
const SIDE: f64 = 26.0;

/// Draws a matrix with true classes by row and predicted classes by column; numbers are percent of the
/// true class.
pub(super) fn matrix(counts: &[Vec<usize>], classes: &[String], title: &str) -> String {
    let (left, top) = (78.0, 66.0);
    let extent = SIDE * counts.len() as f64;
    let mut text = String::new();
    for (index, class) in classes.iter().enumerate() {
        let middle = SIDE * (index as f64 + 0.5);
        let name = escape(&shorten(class, 11));
        let _ = writeln!(
            text,
            "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text><text class=\"tick\" transform=\"translate({:.1} {:.1}) rotate(-60)\">{name}</text>",
            left - 5.0,
            top + middle + 4.0,
            left + middle + 2.0,
            top - 5.0
        );
    }
    for (truth, row) in counts.iter().enumerate() {
        let samples: usize = row.iter().sum();
        for (predicted, &count) in row.iter().enumerate() {
            let share = count as f64 / samples.max(1) as f64;
            let (x, y) = (left + SIDE * predicted as f64, top + SIDE * truth as f64);
            let kind = if truth == predicted { "right" } else { "wrong" };
            let _ = write!(
                text,
                "<rect class=\"cell {kind}\" x=\"{x:.0}\" y=\"{y:.0}\" width=\"{SIDE}\" height=\"{SIDE}\" fill-opacity=\"{:.2}\"><title>{} taken for {}: {count} of {samples}</title></rect>",
                0.8 * share.sqrt(),
                escape(&classes[truth]),
                escape(&classes[predicted])
            );
            if share >= 0.005 {
                let _ = write!(
                    text,
                    "<text class=\"count\" x=\"{:.0}\" y=\"{:.1}\">{:.0}</text>",
                    x + SIDE / 2.0,
                    y + SIDE / 2.0 + 3.5,
                    100.0 * share
                );
            }
        }
        text.push('\n');
    }
    let worst = confusions(counts)
        .first()
        .map_or(String::new(), |&(count, truth, predicted)| {
            format!(
                "The most frequent mistake takes {} for {}, {count} times",
                classes[truth], classes[predicted]
            )
        });
    image(
        left + extent + 18.0,
        top + extent + 4.0,
        title,
        &worst,
        &text,
    )
}

/// Lists mistakes as (count, true class, predicted class), the most frequent first.
fn confusions(counts: &[Vec<usize>]) -> Vec<(usize, usize, usize)> {
    let mut mistakes = Vec::new();
    for (truth, row) in counts.iter().enumerate() {
        for (predicted, &count) in row.iter().enumerate() {
            if truth != predicted && count > 0 {
                mistakes.push((count, truth, predicted));
            }
        }
    }
    mistakes.sort_by(|a, b| b.0.cmp(&a.0).then(a.cmp(b)));
    mistakes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_says_every_count() {
        let names = ["disk".to_owned(), "ring".to_owned()];
        insta::assert_snapshot!(matrix(&[vec![9, 1], vec![300, 100]], &names, "TEST"));
    }
}
