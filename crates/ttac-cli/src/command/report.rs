//! `ttac report`

use ttac::report::{Format, Table, load};

use super::print;
use crate::args::{Options, Report, TableFormat};

pub fn run(args: &Report, options: &Options) -> anyhow::Result<()> {
    let table = Table::new(&load(&args.folders)?)?;
    let format = match args.format {
        TableFormat::Markdown => Format::Markdown,
        TableFormat::Csv => Format::Csv,
        TableFormat::Latex => Format::Latex,
    };
    print(options.json, &table, table.render(format).trim_end())
}
