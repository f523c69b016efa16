//! Problems that every reader words alike.

use std::path::Path;

use crate::Error;

/// A folder that does not hold the data set.
pub(super) fn absent(data: &'static str, root: &Path, problem: String) -> Error {
    Error::Data {
        data,
        path: root.to_owned(),
        problem,
        hint: Some(if has_no_address(data) {
            "`--root DIR` says where it lies; `ttac fetch` cannot bring it".to_owned()
        } else {
            format!("`ttac fetch {data}` brings it, `--root DIR` says where it already lies")
        }),
    }
}

/// Whether a set has to be brought by hand.
fn has_no_address(data: &str) -> bool {
    data.starts_with("modelnet")
}

/// A file that is there and wrong.
pub(super) fn damaged(data: &'static str, path: &Path, problem: String) -> Error {
    Error::Data {
        data,
        path: path.to_owned(),
        problem,
        hint: Some(if has_no_address(data) {
            "the file is damaged or of another data set".to_owned()
        } else {
            format!(
                "the file is damaged or of another data set: remove it and run `ttac fetch {data}`"
            )
        }),
    }
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
    data: &'static str,
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
