//! Unpacking of downloaded files into a data set.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use ttac::Error;

use super::sets::Unpack;

/// Fills a folder beside `root` and renames it, so that `root` appears complete or not at all. A folder that was
/// there before is kept until then.
pub fn install(root: &Path, fill: impl FnOnce(&Path) -> anyhow::Result<()>) -> anyhow::Result<()> {
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
    fill(&fresh)?;
    if root.exists() {
        fs::rename(root, &old).map_err(Error::io("replace", root))?;
    }
    fs::rename(&fresh, root).map_err(Error::io("write", root))?;
    if old.exists() {
        fs::remove_dir_all(&old).map_err(Error::io("remove", &old))?;
    }
    Ok(())
}

/// Puts what is wanted of a downloaded file into a folder.
pub fn unpack(archive: &Path, how: Unpack, into: &Path) -> anyhow::Result<()> {
    let name = archive.file_name().unwrap_or_default().to_string_lossy();
    let extension = archive.extension().and_then(|extension| extension.to_str());
    let inside = match how {
        Unpack::Keep => {
            let target = into.join(&*name);
            fs::copy(archive, &target).map_err(Error::io("write", &target))?;
            return Ok(());
        }
        Unpack::Tree => return unpack_tar(archive, None, into),
        Unpack::Folder(inside) => inside,
    };
    match extension {
        Some("whl") => unpack_zip(archive, inside, into),
        Some("deb") => unpack_debian(archive, inside, into),
        _ => unpack_tar(archive, Some(inside), into),
    }
}

/// Unpacks the files of one folder of an archive, or all of it with its folders.
fn unpack_tar(archive: &Path, inside: Option<&str>, into: &Path) -> anyhow::Result<()> {
    let file = File::open(archive).map_err(Error::io("read", archive))?;
    let file = io::BufReader::new(file);
    let packed = archive.extension().is_some_and(|ending| ending != "tar");
    let reader: Box<dyn Read> = if packed {
        Box::new(flate2::read::GzDecoder::new(file))
    } else {
        Box::new(file)
    };
    let mut tar = tar::Archive::new(reader);
    for entry in tar.entries()? {
        let mut entry = entry.context("the archive is damaged")?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let Some(inside) = inside else {
            // Refuses paths that lead out of the folder.
            entry.unpack_in(into)?;
            continue;
        };
        let path = entry.path()?.into_owned();
        if let Some(file_name) = directly_below(&path, inside) {
            let target = into.join(file_name);
            entry
                .unpack(&target)
                .with_context(|| format!("cannot write `{}`", target.display()))?;
        }
    }
    Ok(())
}

/// Unpacks the files of one folder of a zip archive.
fn unpack_zip(archive: &Path, inside: &str, into: &Path) -> anyhow::Result<()> {
    let file = File::open(archive).map_err(Error::io("read", archive))?;
    let mut zip = zip::ZipArchive::new(io::BufReader::new(file))?;
    for index in 0..zip.len() {
        let mut entry = zip.by_index(index)?;
        let path = PathBuf::from(entry.name()?.into_owned());
        if let (true, Some(file_name)) = (entry.is_file(), directly_below(&path, inside)) {
            let target = into.join(file_name);
            let mut file = File::create(&target).map_err(Error::io("write", &target))?;
            io::copy(&mut entry, &mut file).map_err(Error::io("write", &target))?;
        }
    }
    Ok(())
}

/// Unpacks the files of one folder of a Debian package.
fn unpack_debian(archive: &Path, inside: &str, into: &Path) -> anyhow::Result<()> {
    let everything = into.join(".package");
    let status = Command::new("dpkg-deb")
        .arg("--extract")
        .args([archive, &everything])
        .status()
        .context("cannot run `dpkg-deb`")?;
    if !status.success() {
        bail!("`dpkg-deb` failed: {status}");
    }
    let folder = everything.join(inside);
    for entry in fs::read_dir(&folder).map_err(Error::io("read", &folder))? {
        let entry = entry.map_err(Error::io("read", &folder))?;
        if entry.file_type()?.is_file() {
            let target = into.join(entry.file_name());
            fs::rename(entry.path(), &target).map_err(Error::io("write", &target))?;
        }
    }
    fs::remove_dir_all(&everything).map_err(Error::io("remove", &everything))?;
    Ok(())
}

/// Returns the name of a file that lies in the folder itself, so that nothing can escape from where it is put.
fn directly_below<'a>(path: &'a Path, folder: &str) -> Option<&'a Path> {
    let below = path.strip_prefix(folder).ok()?;
    let mut components = below.components();
    match (components.next(), components.next()) {
        (Some(std::path::Component::Normal(_)), None) => Some(below),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_archive_leaves_the_old_data_in_place() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("cifar10");
        fs::create_dir(&root).unwrap();
        fs::write(root.join("precious"), "kept").unwrap();
        let archive = folder.path().join("archive.tar.gz");
        fs::write(&archive, b"this is no gzip").unwrap();
        let broken = install(&root, |fresh| {
            unpack(&archive, Unpack::Folder("package"), fresh)
        });
        assert!(broken.is_err());
        assert_eq!(fs::read_to_string(root.join("precious")).unwrap(), "kept");
    }

    #[test]
    fn only_files_of_the_folder_itself_are_taken() {
        let below = |path| directly_below(Path::new(path), "package/data");
        assert_eq!(below("package/data/a.bin"), Some(Path::new("a.bin")));
        for path in [
            "package/a.bin",
            "package/data/x/a.bin",
            "package/data/..",
            "package/data",
            "/etc/passwd",
        ] {
            assert_eq!(below(path), None, "{path}");
        }
    }
}
