//! Tables in the documents are what the command prints, and lists of options those it has.

use std::collections::BTreeSet;
use std::path::Path;

use std::process::Command;

use crate::{PROGRAM, ended};

/// What `ttac report` prints, called in the root of the repository.
fn report(root: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(PROGRAM);
    command.current_dir(root).arg("report").args(arguments);
    String::from_utf8(ended(&mut command, 0).stdout).unwrap()
}

/// Panics unless a document has what the command prints.
fn check(root: &Path, document: &str, arguments: &[&str]) {
    let text = std::fs::read_to_string(root.join(document)).unwrap();
    let printed = report(root, arguments);
    assert!(
        text.contains(printed.trim()),
        "{document} lacks what `ttac report {}` prints:\n{printed}",
        arguments.join(" ")
    );
}

/// The options that a text names, in order.
fn options(text: &str) -> BTreeSet<&str> {
    let is_part = |c: char| c.is_ascii_lowercase() || c == '-';
    let names = text.match_indices("--").map(|(start, _)| {
        let rest = &text[start..];
        &rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())]
    });
    let is_name = |name: &&str| name[2..].starts_with(|c: char| c.is_ascii_lowercase());
    names.filter(is_name).collect()
}

#[test]
fn the_document_of_streams_has_what_the_command_prints() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join("docs/protocols.md")).unwrap();
    let mut command = Command::new(PROGRAM);
    let printed = ended(command.arg("streams"), 0).stdout;
    let printed = String::from_utf8(printed).unwrap();
    let parts: Vec<&str> = printed.trim().split("\n\n").collect();
    assert_eq!(parts.len(), 2, "a table and a drawing");
    for part in parts {
        assert!(text.contains(part), "docs/protocols.md lacks\n{part}");
    }
    let mut command = Command::new(PROGRAM);
    let listed = ended(command.args(["streams", "--json"]), 0).stdout;
    let listed: serde_json::Value = serde_json::from_slice(&listed).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 12);
    assert_eq!(listed[0]["reset"], "per-visit");
}

#[test]
fn the_document_of_report_lists_its_options() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join("docs/report.md")).unwrap();
    let table = text.split("| option | what it does |").nth(1).unwrap();
    let table = table.split("\n\n").next().unwrap();
    let help = report(&root, &["--help"]);
    let mut expected = options(help.split("Options:").nth(1).unwrap());
    // These are not about tables.
    for everywhere in ["--device", "--threads", "--help"] {
        assert!(expected.remove(everywhere), "{everywhere}");
    }
    assert_eq!(options(table), expected);
}

#[test]
fn tables_in_the_documents_are_what_the_command_prints() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = 0;
    for folder in std::fs::read_dir(root.join("results")).unwrap() {
        let name = folder.unwrap().file_name().into_string().unwrap();
        let folder = format!("results/{name}");
        let Ok(mut files) = std::fs::read_dir(root.join(&folder)) else {
            continue;
        };
        let is_cell = |path: &Path| path.extension().is_some_and(|kind| kind == "json");
        if files.any(|file| is_cell(&file.unwrap().path())) {
            check(&root, &format!("{folder}/README.md"), &[&folder]);
            found += 1;
        }
    }
    assert!(found > 10, "{found} tables");
    let group = "results/no-harm";
    for folder in std::fs::read_dir(root.join(group)).unwrap() {
        let folder = folder.unwrap();
        if folder.path().is_dir() {
            let name = folder.file_name().into_string().unwrap();
            check(
                &root,
                &format!("{group}/README.md"),
                &[&format!("{group}/{name}")],
            );
        }
    }
    for name in ["corrupted", "severities", "there-and-back"] {
        let records = format!("results/no-harm/{name}");
        check(&root, "results/no-harm/README.md", &[&records, "--gate"]);
    }
    let records = "results/cifar10-c/records";
    check(&root, "results/cifar10-c/README.md", &[records]);
    check(&root, "docs/results.md", &[records, "--means"]);
    let front = report(&root, &["results/no-harm/corrupted", "--means"]);
    check_front_page(&root, &front);
}

/// The front page has some rows of the printed table, each with its mean.
fn check_front_page(root: &Path, printed: &str) {
    let text = std::fs::read_to_string(root.join("README.md")).unwrap();
    let table = text.split("| method | mean error |").nth(1).unwrap();
    let rows = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let mut found = 0;
    for row in rows {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let name = cells[1].split('`').nth(1).unwrap();
        let line = printed
            .lines()
            .find(|line| line.starts_with(&format!("| {name} [")));
        let mean = line.unwrap().split('|').nth(2).unwrap().trim();
        assert_eq!(mean, cells[2], "{name}");
        found += 1;
    }
    assert!(found > 4, "{found} rows");
}
