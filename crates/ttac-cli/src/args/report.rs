//! Arguments of `report`.

use std::path::PathBuf;

use clap::ValueEnum;

#[derive(Debug, clap::Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch on the command line"
)]
pub struct Report {
    /// Folders of cells of `bench`, or of records that `adapt --out` wrote, or stores of cells such as
    /// `s3://BUCKET/PREFIX`; several make one table
    #[arg(value_name = "DIR", required = true)]
    pub folders: Vec<PathBuf>,

    /// How to write the table
    #[arg(long, value_enum, default_value = "markdown")]
    pub format: TableFormat,

    /// Add the rows that the TTAC paper printed for the same data and protocol; what differs is said
    #[arg(long)]
    pub paper: bool,

    /// Only the mean of each row, without a column for every setting
    #[arg(long)]
    pub means: bool,

    /// Errors by class instead of by setting, and as mean that of the classes, as for VisDA-C
    #[arg(long, conflicts_with = "paper")]
    pub by_class: bool,

    /// When gates opened and closed, instead of errors
    #[arg(long, conflicts_with_all = ["paper", "means", "by_class", "format"])]
    pub gate: bool,

    /// Also write a page with tables, protocol cards and figures, which needs nothing but itself
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Title of the page
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "Test-time training, compared",
        requires = "html"
    )]
    pub title: String,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum TableFormat {
    /// With protocol cards as footnotes
    Markdown,
    /// Values alone
    Csv,
    /// A `tabular`
    Latex,
}
