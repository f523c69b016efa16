//! Downloads of files from addresses and of packages from registries.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use sha2::{Digest, Sha256};
use ttac::Error;

use super::sets::FetchSource;
use super::size;
use crate::progress::{Progress, Unit, say};

/// Downloads to `ARCHIVE.part`, going on where an earlier try stopped, and renames it once its length and digest
/// are right. A part with a wrong digest is removed, so that the next try starts afresh.
pub fn download(
    url: &str,
    archive: &Path,
    bytes: Option<u64>,
    digest: Option<&str>,
) -> anyhow::Result<()> {
    // Without a digest, a file under its final name was whole when it was renamed.
    if archive.is_file()
        && digest.is_none_or(|digest| sha256(archive).is_ok_and(|found| found == digest))
    {
        return Ok(());
    }
    let mut part = archive.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let mut have = fs::metadata(&part).map_or(0, |metadata| metadata.len());
    if bytes.is_some_and(|bytes| have > bytes) {
        have = 0;
    }
    if bytes.is_none_or(|bytes| have < bytes) {
        let total = fetch_rest(url, &part, have, bytes)?;
        let length = fs::metadata(&part).map_err(Error::io("read", &part))?.len();
        if total.is_some_and(|total| length < total) {
            let total = total.unwrap_or(length);
            bail!(
                "{url} ended after {length} of {total} bytes; run the command again to go on where it stopped"
            );
        }
    }
    match digest {
        Some(digest) => {
            let found = sha256(&part)?;
            if found != digest {
                fs::remove_file(&part).map_err(Error::io("remove", &part))?;
                bail!("{url} has sha256 {found}, expected {digest}; removed what was downloaded");
            }
        }
        None => say(&format!(
            "{url}: no digest is known, only the length was checked"
        )),
    }
    fs::rename(&part, archive).map_err(Error::io("write", archive))?;
    Ok(())
}

/// Appends what is missing to a part and returns how long it has to be, if that is known.
fn fetch_rest(
    url: &str,
    part: &Path,
    mut have: u64,
    bytes: Option<u64>,
) -> anyhow::Result<Option<u64>> {
    say(&match (have, bytes) {
        (0, _) => format!("downloading {url}"),
        (_, Some(bytes)) => format!("resuming {url} at {} %", 100 * have / bytes),
        (_, None) => format!("resuming {url} after {} MB", have / 1_000_000),
    });
    let mut request = ureq::get(url);
    if have > 0 {
        request = request.header("Range", format!("bytes={have}-"));
    }
    let response = match request.call() {
        // Nothing is left of a file whose length was not known.
        Err(ureq::Error::StatusCode(416)) if bytes.is_none() => return Ok(None),
        response => response.with_context(|| {
            format!("cannot reach {url}; run the command again to go on where it stopped, or try another `--via`")
        })?,
    };
    // A server that ignores the range sends everything: start over.
    let resumes = response.status() == 206;
    if !resumes {
        have = 0;
    }
    let total = bytes.or_else(|| Some(have + response.body().content_length()?));
    let file = File::options()
        .create(true)
        .write(true)
        .append(resumes)
        .truncate(!resumes)
        .open(part);
    let mut file = file.map_err(Error::io("write", part))?;
    let mut progress = Progress::new("fetch", total.unwrap_or(0), Unit::Bytes);
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
            .map_err(Error::io("write", part))?;
        progress.advance(count as u64);
    }
    file.sync_all().map_err(Error::io("write", part))?;
    Ok(total)
}

/// Computes the digest of a file.
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

/// Lets the client of a registry bring a package's archive into a folder.
pub fn package(
    program: &str,
    arguments: &[&str],
    source: &FetchSource,
    folder: &Path,
) -> anyhow::Result<()> {
    let [piece] = source.files else {
        unreachable!("a package is one file");
    };
    let command = format!("{program} {}", arguments.join(" "));
    say(&format!("{command} ({})", size(source)));
    let output = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .output()
        .with_context(|| format!("cannot run `{program}`; install it, or use another `--via`"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{command}` failed: {}", said.trim());
    }
    let archive = folder.join(piece.name);
    let found = sha256(&archive)?;
    if Some(found.as_str()) != piece.sha256 {
        fs::remove_file(&archive).map_err(Error::io("remove", &archive))?;
        bail!(
            "`{}` has sha256 {found}, expected {}; removed it",
            archive.display(),
            piece.sha256.unwrap_or("another")
        );
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
        let (bytes, sha256) = (Some(body.len() as u64), digest(&body));
        let fetch = || download(&url, &archive, bytes, Some(&sha256));

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
        let error = download(&url, &archive, Some(1000), Some(&digest(b"other"))).unwrap_err();
        assert!(error.to_string().contains("expected"), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_of_unknown_length_and_digest_is_resumed_too() {
        let body: Vec<u8> = (0..100_000_u32).map(|i| (i % 249) as u8).collect();
        let (url, _requests) = serve(body.clone(), vec![60_000, usize::MAX]);
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("archive.tar");
        assert!(download(&url, &archive, None, None).is_err());
        assert!(!archive.exists());
        download(&url, &archive, None, None).unwrap();
        assert_eq!(fs::read(&archive).unwrap(), body);
    }
}
