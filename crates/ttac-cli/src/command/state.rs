//! `ttac state`: the streams that a service has stored, without serving them.

use std::path::Path;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use ttac::write_atomically;
use ttac_serve::config::Config;
use ttac_serve::engine::{Replayed, replay};
use ttac_serve::state::{StateFolder, Stored, StreamFolder, read, stream_folders, verify};

use super::print;
use crate::args::{By, Options, State, StateCommand};

pub fn run(args: &State, options: &Options) -> anyhow::Result<()> {
    let folder = &args.folder;
    if !folder.join("streams").is_dir() {
        bail!(
            "`{}` is no state folder: expected a folder `streams` in it; `folder` in `[state]` of a configuration says where it is",
            folder.display()
        );
    }
    match &args.what {
        None => list(folder, options),
        Some(what) => {
            // What a service writes meanwhile would look like damage.
            let _locked = StateFolder::open(folder)?;
            match what {
                StateCommand::Verify => verify_all(folder, options),
                StateCommand::Replay { by, stream } => {
                    replay_some(folder, by, stream.as_deref(), options)
                }
                StateCommand::Export { by, stream, out } => {
                    export(folder, by, stream, out, options)
                }
            }
        }
    }
}

/// Reads what lies in the folders of streams; each may be unreadable for itself.
fn stored(folder: &Path) -> anyhow::Result<Vec<(StreamFolder, ttac_serve::Result<Stored>)>> {
    let mut found = Vec::new();
    for folder in stream_folders(folder)? {
        match read(folder.clone()) {
            Ok(None) => {}
            Ok(Some(stored)) => found.push((folder, Ok(stored))),
            Err(error) => found.push((folder, Err(error))),
        }
    }
    let name = |stored: &ttac_serve::Result<Stored>| match stored {
        Ok(stored) => (stored.card.model.clone(), stored.card.stream.clone()),
        Err(_) => (String::new(), String::new()),
    };
    found.sort_by_key(|(_, stored)| name(stored));
    Ok(found)
}

// --------------------------------------------------------------------------------------- to list

fn list(folder: &Path, options: &Options) -> anyhow::Result<()> {
    let mut streams = Vec::new();
    let mut rows = vec![
        [
            "model", "stream", "mode", "health", "newest", "kept", "log", "left",
        ]
        .map(str::to_owned),
    ];
    let mut unreadable = Vec::new();
    for (place, stored) in stored(folder)? {
        let stored = match stored {
            Ok(stored) => stored,
            Err(error) => {
                let problem = format!("{:#}", anyhow::Error::from(error));
                streams.push(json!({ "folder": place.path(), "error": problem }));
                unreadable.push(format!("`{}`: {problem}", place.path().display()));
                continue;
            }
        };
        streams.push(described(&stored));
        let newest = stored.snapshots.first();
        rows.push([
            stored.card.model.clone(),
            stored.card.stream.clone(),
            stored.card.mode.name().to_owned(),
            stored.card.health.name().to_owned(),
            newest.map_or("none".to_owned(), |file| {
                format!("version {} at {}", file.version, file.sequence)
            }),
            versions(&stored).len().to_string(),
            format!("{:.1} MB", stored.log_bytes() as f64 / 1e6),
            stored.left().to_string(),
        ]);
    }
    let mut text = if rows.len() == 1 {
        "no stream is stored here".to_owned()
    } else {
        aligned(&rows)
    };
    for problem in unreadable {
        text += "\nunreadable: ";
        text += &problem;
    }
    print(options.json, &json!({ "streams": streams }), &text)
}

/// Lists the versions of a stored stream, the newest first.
fn versions(stored: &Stored) -> Vec<u64> {
    let mut versions: Vec<u64> = stored.snapshots.iter().map(|file| file.version).collect();
    versions.sort_unstable_by(|a, b| b.cmp(a));
    versions.dedup();
    versions
}

fn described(stored: &Stored) -> Value {
    let newest = stored.snapshots.first();
    json!({
        "model": stored.card.model,
        "stream": stored.card.stream,
        "folder": stored.folder.path(),
        "mode": stored.card.mode,
        "health": stored.card.health,
        "snapshot": newest.map(|file| json!({ "version": file.version, "record": file.sequence, "file": file.path })),
        "versions": versions(stored),
        "log_bytes": stored.log_bytes(),
        "records_left": stored.left(),
    })
}

/// Writes rows in columns that are as wide as they need.
fn aligned(rows: &[[String; 8]]) -> String {
    let widths: [usize; 8] = std::array::from_fn(|column| {
        let widths = rows.iter().map(|row| row[column].chars().count());
        widths.max().unwrap_or(0)
    });
    let lines = rows.iter().map(|row| {
        let cells = row.iter().zip(widths);
        let cells = cells.map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        line.trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

// ------------------------------------------------------------------------------------- to verify

fn verify_all(folder: &Path, options: &Options) -> anyhow::Result<()> {
    let mut streams = Vec::new();
    let mut lines = Vec::new();
    let mut wrong = 0;
    for (place, stored) in stored(folder)? {
        let (named, name, problems) = match stored {
            Ok(stored) => {
                let problems = verify(&stored)?;
                let name = format!("{} / {}", stored.card.model, stored.card.stream);
                let named = json!({ "model": stored.card.model, "stream": stored.card.stream });
                (named, name, problems)
            }
            Err(error) => {
                let problem = format!("{:#}", anyhow::Error::from(error));
                let name = place.path().display().to_string();
                (json!({}), name, vec![problem])
            }
        };
        let mut described = named;
        described["folder"] = json!(place.path());
        described["problems"] = json!(problems);
        streams.push(described);
        wrong += usize::from(!problems.is_empty());
        if problems.is_empty() {
            lines.push(format!("{name}: whole"));
        } else {
            lines.push(format!("{name}:"));
            lines.extend(problems.iter().map(|problem| format!("- {problem}")));
        }
    }
    if lines.is_empty() {
        lines.push("no stream is stored here".to_owned());
    }
    let count = streams.len();
    print(
        options.json,
        &json!({ "streams": streams }),
        &lines.join("\n"),
    )?;
    if wrong == 0 {
        return Ok(());
    }
    Err(ttac::Error::Missed {
        what: format!("stored streams in `{}`", folder.display()),
        bound: format!("{count} that are whole"),
        found: format!("{wrong} that are not"),
    }
    .into())
}

// ------------------------------------------------------------------------- to replay, to export

/// Learns again from the streams of a name, or from all.
fn replayed(
    folder: &Path,
    by: &By,
    stream: Option<&str>,
) -> anyhow::Result<Vec<(Stored, Replayed)>> {
    let config = Config::load(&by.config)?;
    let mut found = Vec::new();
    let mut known = Vec::new();
    for (_, stored) in stored(folder)? {
        // One that is unreadable is not the one that was asked for, unless all were.
        let stored = match (stored, stream) {
            (Ok(stored), _) => stored,
            (Err(_), Some(_)) => continue,
            (Err(error), None) => return Err(error.into()),
        };
        let card = &stored.card;
        known.push(format!("`{}` of `{}`", card.stream, card.model));
        let is_meant = stream.is_none_or(|name| name == card.stream)
            && by.model.as_ref().is_none_or(|name| *name == card.model);
        if !is_meant {
            continue;
        }
        if let Some(replayed) = replay(&config, &stored.folder)? {
            found.push((stored, replayed));
        }
    }
    if found.is_empty() {
        let known = match &known[..] {
            [] => "no stream is stored".to_owned(),
            known => format!("those that are stored: {}", known.join(", ")),
        };
        let of = by.model.as_ref();
        let of = of.map_or(String::new(), |model| format!(" of the model `{model}`"));
        let name = stream.map_or(String::new(), |stream| format!(" `{stream}`"));
        bail!(
            "there is no stream{name}{of} in `{}`; {known}",
            folder.display()
        );
    }
    Ok(found)
}

fn replay_some(
    folder: &Path,
    by: &By,
    stream: Option<&str>,
    options: &Options,
) -> anyhow::Result<()> {
    let mut streams = Vec::new();
    let mut lines = Vec::new();
    for (stored, replayed) in replayed(folder, by, stream)? {
        let card = &stored.card;
        streams.push(json!({
            "model": card.model,
            "stream": card.stream,
            "record": replayed.sequence,
            "records": replayed.records,
            "version": replayed.version,
            "weights": replayed.weights,
            "mode": replayed.mode,
            "health": replayed.health,
            "accepted": replayed.accepted,
            "learned": replayed.learned,
            "forgotten": replayed.forgotten,
            "damage": replayed.damage,
        }));
        lines.push(format!(
            "{} / {}: version {} {} after record {}, {} of them beyond the snapshot; {}, {}, {} images accepted, {} learned from",
            card.model,
            card.stream,
            replayed.version,
            replayed.weights,
            replayed.sequence,
            replayed.records,
            replayed.mode.name(),
            replayed.health.name(),
            replayed.accepted,
            replayed.learned,
        ));
        if replayed.forgotten > 0 {
            lines.push(format!(
                "- the pixels of {} images were not on disk, so that they were not learned from",
                replayed.forgotten
            ));
        }
        lines.extend(replayed.damage.map(|damage| format!("- {damage}")));
    }
    print(
        options.json,
        &json!({ "streams": streams }),
        &lines.join("\n"),
    )
}

fn export(
    folder: &Path,
    by: &By,
    stream: &str,
    out: &Path,
    options: &Options,
) -> anyhow::Result<()> {
    let mut found = replayed(folder, by, Some(stream))?;
    if found.len() > 1 {
        let models = found.iter().map(|(stored, _)| stored.card.model.clone());
        bail!(
            "several models have a stream `{stream}`: say which by `--model`, one of `{}`",
            models.collect::<Vec<_>>().join("`, `")
        );
    }
    let (stored, replayed) = found.pop().context("there is one stream")?;
    if let Some(damage) = &replayed.damage {
        bail!("{damage}; roll the stream back or delete it, and export it then");
    }
    write_atomically(out, &replayed.checkpoint)?;
    let result = json!({
        "model": stored.card.model, "stream": stream, "version": replayed.version, "weights": replayed.weights, "path": out,
    });
    let text = format!(
        "wrote {}: version {} {} of the stream `{stream}`",
        out.display(),
        replayed.version,
        replayed.weights
    );
    print(options.json, &result, &text)
}
