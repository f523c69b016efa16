//! `ttac demo`: a shipped model meets corrupted images, and learns from them.
//!
//! The demo is `configs/demo.toml`, run like any other grid, with the model, the anchors and the
//! images that are part of this program, or with a model and images of the user.

use std::path::Path;

use anyhow::{Context, bail};
use serde_json::json;
use ttac::backbone::Backbone;
use ttac::experiment::Grid;
use ttac::report::{Format, Table, html, load};
use ttac::{Error, Model, Session, SourceStatistics, burn::tensor::Device, write_atomically};
use ttac_fleet::Store;

use super::bench::Runs;
use super::print;
use crate::args::{Demo, Options};
use crate::device;
use crate::progress::say;

const CONFIG: &str = include_str!("../../../../configs/demo.toml");
/// The shipped network and its anchors, each with the name of its key.
pub const SHIPPED: [(&str, &[u8]); 2] = [
    (
        "model",
        include_bytes!("../../../../assets/shapes10/model.safetensors"),
    ),
    (
        "anchors",
        include_bytes!("../../../../assets/shapes10/anchors.safetensors"),
    ),
];

const NEXT: &str = "\
The same with your own network and images, in three commands:
  ttac import NET.pt2 --normalise imagenet --out model.safetensors
  ttac anchors --model model.safetensors --data image-folder --root SOURCE --calibrate HELD-OUT --out anchors.safetensors
  ttac adapt --model model.safetensors --anchors anchors.safetensors --data image-folder --root TARGET";

pub fn run(args: &Demo, options: &Options) -> anyhow::Result<()> {
    let device = device::parse(&options.device)?;
    let mut grid: toml::Table = toml::from_str(CONFIG).context("the demo's own configuration")?;
    let mut shared = toml::Table::new();
    match (&args.model, &args.data) {
        (Some(model), Some(data)) => own(args, (model, data), &mut grid, &mut shared, &device)?,
        _ => shipped(args, &mut shared)?,
    }
    let images = i64::try_from(args.images.get())?;
    shared.insert("subset".to_owned(), images.into());
    // A demo that shows yesterday's result at once would show nothing.
    let cells = args.out.join("cells");
    if cells.exists() {
        std::fs::remove_dir_all(&cells).map_err(Error::io("empty", &cells))?;
    }
    let grid = Grid::parse_with(&toml::to_string(&grid)?, &shared)?;
    let runs = Runs::new(grid, Store::folder(&cells))?;
    let network = if args.model.is_some() {
        "Your network meets its images"
    } else {
        "A small network has learnt ten shapes on clean images. It now meets images"
    };
    say(&format!("{network} under four corruptions,"));
    say(
        "without labels: as it is (TEST), with norm statistics of each batch (BN), and learning (TENT, TTAC).",
    );
    runs.run("demo", &runs.part((1, 1)), &device)?;
    let records = load(std::slice::from_ref(&cells))?;
    let table = Table::new(&records)?;
    let page = args.out.join("report.html");
    let title = match &args.model {
        Some(_) => "ttac demo: your network under corruption",
        None => "ttac demo: shapes under corruption",
    };
    write_atomically(&page, html::page(title, &records, &table).as_bytes())?;
    let result = json!({ "folder": args.out, "page": page, "table": table });
    let shown = format!(
        "\n{}\nFigures and protocols: {}\n\n{NEXT}",
        table.render(Format::Markdown),
        page.display()
    );
    print(options.json, &result, &shown)
}

/// Puts the shipped model and its anchors beside the results.
fn shipped(args: &Demo, shared: &mut toml::Table) -> anyhow::Result<()> {
    for (key, bytes) in SHIPPED {
        let path = args.out.join(format!("{key}.safetensors"));
        write_atomically(&path, bytes)?;
        shared.insert(key.to_owned(), text(&path)?.into());
    }
    Ok(())
}

/// Takes a model of the user's own, and leaves out what it cannot serve.
fn own(
    args: &Demo,
    (model, data): (&Path, &str),
    grid: &mut toml::Table,
    shared: &mut toml::Table,
    device: &Device,
) -> anyhow::Result<()> {
    shared.insert("model".to_owned(), text(model)?.into());
    shared.insert("data".to_owned(), data.into());
    if let Some(root) = &args.root {
        shared.insert("root".to_owned(), text(root)?.into());
    }
    if let Some(toml::Value::Table(keys)) = grid.get_mut("grid") {
        keys.remove("anchors");
    }
    let anchors = match &args.anchors {
        Some(anchors) => {
            shared.insert("anchors".to_owned(), text(anchors)?.into());
            Some(SourceStatistics::load(anchors)?)
        }
        None => None,
    };
    let model = Model::load(model, device)?;
    let Some(toml::Value::Array(rows)) = grid.get_mut("row") else {
        bail!("the demo's own configuration has no rows");
    };
    let mut kept = Vec::new();
    for mut row in std::mem::take(rows) {
        let method = row.get("method").and_then(toml::Value::as_str);
        let mut method = method.unwrap_or_default().to_owned();
        if method == "ttac" && anchors.is_none() {
            "ttac-source-free".clone_into(&mut method);
            if let Some(row) = row.as_table_mut() {
                row.insert("method".to_owned(), method.as_str().into());
            }
        }
        // A thousand full covariances fill any memory.
        let many = model.classes.len() > 100 && method.starts_with("ttac");
        if let (true, Some(row)) = (many, row.as_table_mut()) {
            let diagonal =
                toml::Table::from_iter([("class_covariance".to_owned(), "diagonal".into())]);
            row.insert("set".to_owned(), diagonal.into());
        }
        if many {
            let served = anchors.is_some() || model.network.head_weights().is_some();
            if served {
                kept.push(row);
            } else {
                say(
                    "left out: `ttac-source-free` needs a linear classifier, and this network has none",
                );
            }
            continue;
        }
        let builder = Session::builder(&model).method(&method);
        let builder = match &anchors {
            Some(anchors) => builder.anchors(anchors),
            None => builder,
        };
        match builder.build() {
            Ok(_) => kept.push(row),
            Err(error @ Error::NoLayers { .. }) => say(&format!("left out: {error}")),
            Err(error) => return Err(error.into()),
        }
    }
    *rows = kept;
    Ok(())
}

/// A path as it can stand in a configuration.
fn text(path: &Path) -> anyhow::Result<&str> {
    path.to_str()
        .with_context(|| format!("`{}` is not UTF-8", path.display()))
}
