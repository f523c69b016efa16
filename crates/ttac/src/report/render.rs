//! Tables as text.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::comparison::Comparison;
use super::table::{Row, Table};

/// How a table is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// A Markdown table with the protocol cards as footnotes.
    #[default]
    Markdown,
    /// Comma-separated values without footnotes; fields are quoted as RFC 4180 asks.
    Csv,
    /// A LaTeX `tabular`, in which special characters of names are escaped.
    Latex,
}

/// Says what the columns of comparisons mean.
pub(super) const COMPARISON_NOTE: &str = "Difference: percentage points against the best other row, the competitor, over cells of the same setting and seed. p: two-sided, by the exact Wilcoxon signed-rank test over these pairs; of a single pair, by McNemar's exact test over its images; none for two to four pairs. Not corrected for the number of rows.";

impl Table {
    /// Writes the table as text.
    pub fn render(&self, format: Format) -> String {
        match format {
            Format::Markdown => self.markdown(),
            Format::Csv => self.csv(),
            Format::Latex => self.latex(),
        }
    }

    fn markdown(&self) -> String {
        let escape = |field: String| field.replace('|', "\\|").replace(['\n', '\r'], " ");
        let line = |fields: Vec<String>| {
            let fields: Vec<String> = fields.into_iter().map(escape).collect();
            format!("| {} |\n", fields.join(" | "))
        };
        let head = self.head();
        let rule = vec!["---".to_owned(); head.len()];
        let mut text = line(head) + &line(rule);
        for (number, row) in self.rows.iter().enumerate() {
            text += &line(self.fields(row, format!("{} [{}]", row.name, number + 1)));
        }
        text += "\nError in percent.";
        if self.is_compared() {
            text += " ";
            text += COMPARISON_NOTE;
        }
        text += "\n\n";
        for (number, row) in self.rows.iter().enumerate() {
            let _ = writeln!(text, "{}. {}", number + 1, row.protocol);
        }
        text
    }

    fn csv(&self) -> String {
        let mut text = String::new();
        for fields in self.lines() {
            let fields: Vec<Cow<'_, str>> = fields.iter().map(|field| csv_field(field)).collect();
            text += &fields.join(",");
            text.push('\n');
        }
        text
    }

    fn latex(&self) -> String {
        let numbers = "r".repeat(self.head().len() - 1);
        let mut text = format!("\\begin{{tabular}}{{l{numbers}}}\n");
        for fields in self.lines() {
            let fields: Vec<String> = fields.iter().map(|field| latex_text(field)).collect();
            let _ = writeln!(text, "{} \\\\", fields.join(" & "));
        }
        text + "\\end{tabular}\n"
    }

    fn is_compared(&self) -> bool {
        self.rows.iter().any(|row| row.against.is_some())
    }

    /// The head and all rows, field by field.
    fn lines(&self) -> Vec<Vec<String>> {
        let rows = self.rows.iter();
        let rows = rows.map(|row| self.fields(row, row.name.clone()));
        std::iter::once(self.head()).chain(rows).collect()
    }

    fn head(&self) -> Vec<String> {
        let mut head = vec!["method".to_owned()];
        head.extend(self.columns.iter().cloned());
        head.push("mean".to_owned());
        if self.is_compared() {
            head.extend(["competitor", "difference", "p"].map(str::to_owned));
        }
        head
    }

    /// The fields of a row that is called `name`.
    fn fields(&self, row: &Row, name: String) -> Vec<String> {
        let mut fields = vec![name];
        let cells = row.cells.iter();
        fields.extend(cells.map(|cell| cell.map_or(String::new(), |spread| spread.to_string())));
        fields.push(row.mean.map_or(String::new(), |mean| format!("{mean:.2}")));
        if self.is_compared() {
            fields.extend(comparison_fields(row.against.as_ref()));
        }
        fields
    }
}

/// Writes competitor, difference and p of a row.
pub(super) fn comparison_fields(against: Option<&Comparison>) -> [String; 3] {
    let Some(against) = against else {
        return Default::default();
    };
    let p = against.significance.map(|found| p_text(found.p));
    [
        against.competitor.clone(),
        format!("{:+.2}", against.difference),
        p.unwrap_or_default(),
    ]
}

/// Writes a p-value with as many digits as it has use for.
pub(super) fn p_text(p: f64) -> String {
    if p >= 0.001 {
        format!("{p:.3}")
    } else {
        format!("{p:.0e}")
    }
}

/// Quotes a field of comma-separated values where RFC 4180 asks for it: if it has a comma, a quote or a
/// line break.
///
/// ```
/// use ttac::report::csv_field;
///
/// assert_eq!(csv_field("snow"), "snow");
/// assert_eq!(csv_field("cat, \"wild\""), "\"cat, \"\"wild\"\"\"");
/// ```
pub fn csv_field(text: &str) -> Cow<'_, str> {
    if text.contains([',', '"', '\n', '\r']) {
        Cow::Owned(format!("\"{}\"", text.replace('"', "\"\"")))
    } else {
        Cow::Borrowed(text)
    }
}

/// Writes text so that LaTeX prints it as it is.
fn latex_text(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' | '%' | '$' | '#' | '_' | '{' | '}' => {
                safe.push('\\');
                safe.push(c);
            }
            '~' => safe.push_str("\\textasciitilde{}"),
            '^' => safe.push_str("\\textasciicircum{}"),
            '\\' => safe.push_str("\\textbackslash{}"),
            // The usual font encoding has other signs in these places.
            '<' => safe.push_str("\\textless{}"),
            '>' => safe.push_str("\\textgreater{}"),
            '|' => safe.push_str("\\textbar{}"),
            '±' => safe.push_str("$\\pm$"),
            // An empty line would end a paragraph, which a `tabular` does not allow.
            '\n' | '\r' => safe.push(' '),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::super::table::{RowSource, Spread};
    use super::*;

    fn table(row: &str, column: &str) -> Table {
        Table {
            columns: vec![column.to_owned(), "b".to_owned()],
            rows: vec![Row {
                name: row.to_owned(),
                cells: vec![Some(Spread::of(&[1.0, 2.0])), None],
                mean: None,
                protocol: "its protocol".to_owned(),
                source: RowSource::Measured,
                against: None,
            }],
        }
    }

    /// Reads comma-separated values by the rules of RFC 4180.
    fn parse_csv(text: &str) -> Vec<Vec<String>> {
        let (mut lines, mut fields, mut field) = (Vec::new(), Vec::new(), String::new());
        let mut quoted = false;
        let mut characters = text.chars().peekable();
        while let Some(c) = characters.next() {
            match c {
                '"' if quoted && characters.peek() == Some(&'"') => {
                    field.push('"');
                    characters.next();
                }
                '"' => quoted = !quoted,
                ',' if !quoted => fields.push(std::mem::take(&mut field)),
                '\n' if !quoted => {
                    fields.push(std::mem::take(&mut field));
                    lines.push(std::mem::take(&mut fields));
                }
                c => field.push(c),
            }
        }
        lines
    }

    #[test]
    fn csv_reads_back_whatever_the_names_are() {
        for name in ["plain", "a, b", "say \"cat\"", "two\nlines", "\"", ",", ""] {
            let column = format!("column {name}");
            let text = table(name, &column).render(Format::Csv);
            let expected = [
                vec!["method", &column, "b", "mean"],
                vec![name, "1.50 ± 0.71", "", ""],
            ];
            assert_eq!(parse_csv(&text), expected, "{text}");
        }
        // What needs no quotes has none.
        assert_eq!(
            table("TTAC", "snow").render(Format::Csv),
            "method,snow,b,mean\nTTAC,1.50 ± 0.71,,\n"
        );
    }

    #[test]
    fn latex_prints_every_special_character() {
        let text = table("a & b_1 {50%}", "$x^2$ #1 ~ \\n <i>|").render(Format::Latex);
        assert_eq!(
            text,
            "\\begin{tabular}{lrrr}\n\
             method & \\$x\\textasciicircum{}2\\$ \\#1 \\textasciitilde{} \\textbackslash{}n \
             \\textless{}i\\textgreater{}\\textbar{} & b & mean \\\\\n\
             a \\& b\\_1 \\{50\\%\\} & 1.50 $\\pm$ 0.71 &  &  \\\\\n\
             \\end{tabular}\n"
        );
    }

    #[test]
    fn markdown_keeps_its_columns() {
        let text = table("a|b", "two\nlines").render(Format::Markdown);
        assert_eq!(
            text,
            "| method | two lines | b | mean |\n| --- | --- | --- | --- |\n\
             | a\\|b [1] | 1.50 ± 0.71 |  |  |\n\nError in percent.\n\n1. its protocol\n"
        );
    }
}
