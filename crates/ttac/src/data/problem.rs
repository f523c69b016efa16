//! Problems that every reader words alike.

use std::path::{Path, PathBuf};

use crate::{Error, Remedy};

/// A folder that does not hold the data set.
pub(super) fn absent(data: &str, root: &Path, problem: String) -> Error {
    wrong(data, root, problem, Remedy::BringData)
}

/// A file that is there and wrong.
pub(super) fn damaged(data: &str, path: &Path, problem: String) -> Error {
    wrong(data, path, problem, Remedy::BringDataAgain)
}

/// A problem with the files of a data set.
pub(super) fn wrong(data: &str, path: &Path, problem: String, remedy: Remedy) -> Error {
    Error::Data {
        data: data.to_owned(),
        path: path.to_owned(),
        problem,
        remedy: Some(remedy),
    }
}

/// Refuses a place that is no folder.
pub(super) fn check_folder(data: &str, root: &Path) -> Result<(), Error> {
    if root.is_dir() {
        return Ok(());
    }
    Err(absent(data, root, "no such folder".to_owned()))
}

/// The folder that holds a file: the given one, or the one in it that an archive unpacks into.
pub(super) fn folder_with(root: &Path, nested: &str, file: &str) -> Option<PathBuf> {
    let folders = [root.to_owned(), root.join(nested)];
    folders
        .into_iter()
        .find(|folder| folder.join(file).is_file())
}

/// What a folder holds, as the end of a sentence: `the folder is empty`, or `found` and three names.
pub(super) fn contents(root: &Path) -> String {
    let mut names: Vec<String> = std::fs::read_dir(root)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .collect();
    if names.is_empty() {
        return "the folder is empty".to_owned();
    }
    names.sort();
    names.truncate(3);
    format!("found `{}`", names.join("`, `"))
}

/// Whether a record's label is a class.
pub(super) fn check_label(
    data: &str,
    path: &Path,
    index: usize,
    label: i64,
    num_classes: usize,
) -> Result<(), Error> {
    if (0..num_classes as i64).contains(&label) {
        return Ok(());
    }
    let last = num_classes - 1;
    let problem = format!("record {index} has label {label}, expected 0 to {last}");
    Err(damaged(data, path, problem))
}
