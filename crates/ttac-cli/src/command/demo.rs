//! `ttac demo`: a shipped model meets corrupted images, and learns from them.
//!
//! The demo is `configs/demo.toml`, run like any other grid, with the model, the anchors and the
//! images that are part of this program.

use std::path::Path;

use anyhow::Context;
use serde_json::json;
use ttac::experiment::Grid;
use ttac::report::{Format, Table, html, load};
use ttac::{Error, write_atomically};

use super::bench::Runs;
use super::print;
use crate::args::{Demo, Options};
use crate::device;
use crate::progress::say;

const CONFIG: &str = include_str!("../../../../configs/demo.toml");
const MODEL: &[u8] = include_bytes!("../../../../assets/shapes10/model.safetensors");
const ANCHORS: &[u8] = include_bytes!("../../../../assets/shapes10/anchors.safetensors");

const NEXT: &str = "\
The same with your own weights and images, in three commands:
  ttac import WEIGHTS.pth --arch resnet20-cifar --normalise imagenet --out model.safetensors
  ttac anchors --model model.safetensors --data image-folder --root SOURCE --out anchors.safetensors
  ttac adapt --model model.safetensors --anchors anchors.safetensors --data image-folder --root TARGET";

pub fn run(args: &Demo, options: &Options) -> anyhow::Result<()> {
    let device = device::parse(&options.device)?;
    let mut shared = toml::Table::new();
    for (key, bytes) in [("model", MODEL), ("anchors", ANCHORS)] {
        let path = args.out.join(format!("{key}.safetensors"));
        write_atomically(&path, bytes)?;
        shared.insert(key.to_owned(), text(&path)?.into());
    }
    let images = i64::try_from(args.images.get())?;
    shared.insert("subset".to_owned(), images.into());
    // A demo that shows yesterday's result at once would show nothing.
    let cells = args.out.join("cells");
    if cells.exists() {
        std::fs::remove_dir_all(&cells).map_err(Error::io("empty", &cells))?;
    }
    let grid = Grid::parse_with(CONFIG, &shared).context("the demo's own configuration")?;
    let runs = Runs::new(grid, &cells)?;
    say(
        "A small network has learnt ten shapes on clean images. It now meets images under four corruptions,",
    );
    say(
        "without labels: as it is (TEST), with norm statistics of each batch (BN), and learning (TENT, TTAC).",
    );
    runs.run("demo", &runs.part((1, 1)), &device)?;
    let records = load(std::slice::from_ref(&cells))?;
    let table = Table::new(&records)?;
    let page = args.out.join("report.html");
    let title = "ttac demo: shapes under corruption";
    write_atomically(&page, html::page(title, &records, &table).as_bytes())?;
    let result = json!({ "folder": args.out, "page": page, "table": table });
    let shown = format!(
        "\n{}\nFigures and protocols: {}\n\n{NEXT}",
        table.render(Format::Markdown),
        page.display()
    );
    print(options.json, &result, &shown)
}

/// A path as it can stand in a configuration.
fn text(path: &Path) -> anyhow::Result<&str> {
    path.to_str()
        .with_context(|| format!("`{}` is not UTF-8", path.display()))
}
