//! `ttac report`: makes a table, and a page with figures, of records.

use anyhow::Context as _;
use ttac::report::{Format, GateTable, Table, html, load};
use ttac::write_atomically;

use super::print;
use crate::args::{Options, Report, TableFormat};
use crate::fleet::results::Folders;
use crate::progress::say;

pub fn run(args: &Report, options: &Options) -> anyhow::Result<()> {
    let folders = Folders::of(&args.folders)?;
    let cells = load(&folders.paths)?;
    let mut table = Table::new(&cells)?;
    if args.paper {
        table = table.with_published(&cells);
    }
    if let Some(path) = &args.html {
        let page = html::page(&args.title, &cells, &table);
        write_atomically(path, page.as_bytes())?;
        say(&format!("wrote {}", path.display()));
    }
    if args.gate {
        let gates = GateTable::new(&cells).context("none of these records had a gate")?;
        return print(options.json, &gates, gates.markdown().trim_end());
    }
    if args.by_class {
        table = Table::by_class(&cells)?;
    }
    if args.means {
        table = table.means_alone();
    }
    let format = match args.format {
        TableFormat::Markdown => Format::Markdown,
        TableFormat::Csv => Format::Csv,
        TableFormat::Latex => Format::Latex,
    };
    print(options.json, &table, table.render(format).trim_end())
}
