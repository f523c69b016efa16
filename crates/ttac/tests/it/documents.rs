//! What the documents say about files and architectures is so.

use std::path::{Path, PathBuf};

use ttac::backbone::{Architecture, InputForm};
use ttac::experiment::StreamPreset;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every document a reader may open: those at the root and those in `docs`.
fn documents() -> Vec<(PathBuf, String)> {
    let root = root();
    let mut found = Vec::new();
    for folder in [root.clone(), root.join("docs")] {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == "md") {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    found.sort();
    found
}

/// The paths in backticks, as in `docs/protocols.md`. Patterns such as `docs/*.md` are not paths.
fn paths_in_backticks(text: &str) -> impl Iterator<Item = &str> {
    let outside_blocks = text.split("```").step_by(2);
    let quoted = outside_blocks.flat_map(|part| part.split('`').skip(1).step_by(2));
    let words = quoted.filter_map(|code| code.split_whitespace().next());
    words.filter(|word| {
        let folders = ["crates/", "reference/", "configs/", "docs/"];
        let pattern = word.contains(['*', '{', '<', '$']);
        folders.iter().any(|folder| word.starts_with(folder)) && !pattern
    })
}

/// The targets of links to files, as in `[text](docs/protocols.md)`.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let outside_blocks = text.split("```").step_by(2);
    let targets = outside_blocks.flat_map(|part| part.split("](").skip(1));
    let targets = targets.filter_map(|rest| rest.split([')', '#', ' ']).next());
    targets.filter(|target| !target.is_empty() && !target.contains("://"))
}

#[test]
fn every_path_and_link_in_the_documents_exists() {
    let mut missing = Vec::new();
    let mut looked_up = 0;
    for (document, text) in documents() {
        let folder = document.parent().unwrap();
        let paths = paths_in_backticks(&text).map(|path| root().join(path));
        for path in paths.chain(links(&text).map(|link| folder.join(link))) {
            looked_up += 1;
            if !path.exists() {
                let name = document.file_name().unwrap().to_string_lossy();
                missing.push(format!("{name}: {}", path.display()));
            }
        }
    }
    assert!(looked_up > 20, "only {looked_up} paths were found");
    assert!(missing.is_empty(), "not there:\n{}", missing.join("\n"));
}

/// The pieces of code whose first line names a file, as in `// crates/ttac/src/lib.rs`: the file and the rest.
fn quoted_code(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let blocks = text.split("```").skip(1).step_by(2);
    let rust = blocks.filter_map(|block| block.strip_prefix("rust\n// "));
    rust.filter_map(|block| block.split_once('\n'))
}

#[test]
fn code_in_the_documents_is_the_code_of_the_file_it_names() {
    let mut looked_up = 0;
    for (document, text) in documents() {
        for (file, code) in quoted_code(&text) {
            looked_up += 1;
            let source = std::fs::read_to_string(root().join(file)).unwrap();
            let place = document.display();
            assert!(
                source.contains(code),
                "{place}: {file} does not have\n{code}"
            );
        }
    }
    assert!(looked_up >= 5, "only {looked_up} pieces were found");
}

#[test]
fn the_documents_list_every_architecture() {
    let rows = Architecture::published().into_iter().map(|one| {
        let takes = match Architecture::by_name(one.name, 10).unwrap().input() {
            InputForm::Images {
                size: [height, width],
                fixed: false,
            } => format!("images, {height}x{width} or other"),
            InputForm::Images {
                size: [height, width],
                fixed: true,
            } => format!("images, {height}x{width} only"),
            InputForm::Clouds { points, fewest } => {
                format!("clouds, {points} points or others from {fewest} on")
            }
        };
        let (name, about, weights) = (one.name, one.about, one.weights);
        format!(
            "| `{name}` | {about} | {} | {takes} | {weights} |\n",
            one.parameters
        )
    });
    let head = "| name | what it is | parameters | takes | keys of |\n|---|---|---|---|---|\n";
    let table = format!("{head}{}", rows.collect::<String>());
    check_generated("docs/architectures.md", head, &table);
}

#[test]
fn the_documents_list_every_function_that_can_be_imported() {
    let rows = ttac::graph::SUPPORTED.iter();
    let rows = rows.map(|(function, becomes)| format!("| `{function}` | {becomes} |\n"));
    let head = "| function | becomes |\n|---|---|\n";
    let table = format!("{head}{}", rows.collect::<String>());
    check_generated("docs/your-own-network.md", head, &table);
}

#[test]
fn the_documents_list_and_draw_every_stream_that_has_a_name() {
    let table = StreamPreset::table();
    let head = "| stream | what it is | `--corruption` | `--order` | `--batch-size` | `--reset` |\n|---|---|---|---|---|---|\n";
    check_generated("docs/protocols.md", head, &table);
    let first = "come back twenty times do so three times here.\n\n```\n";
    let drawn = format!("{first}{}```\n", StreamPreset::draw_all());
    check_generated("docs/protocols.md", first, &drawn);
}

/// Compares the table with a head in a document with what it should be or, if `UPDATE_DOCUMENTS` is set, writes it there.
fn check_generated(document: &str, head: &str, table: &str) {
    let path = root().join(document);
    let text = std::fs::read_to_string(&path).unwrap();
    let start = text.find(head).expect("the table's head");
    let after = text[start + head.len()..].find("\n\n");
    let length = head.len() + after.expect("the table's end") + 1;
    let old = &text[start..][..length];
    if std::env::var_os("UPDATE_DOCUMENTS").is_some() {
        std::fs::write(&path, text.replace(old, table)).unwrap();
    } else {
        assert_eq!(
            old, table,
            "`UPDATE_DOCUMENTS=1 cargo test documents` writes it"
        );
    }
}

/// Panics unless a document names each of some words in backticks.
fn check_named(document: &str, words: impl IntoIterator<Item = String>) {
    let text = std::fs::read_to_string(root().join(document)).unwrap();
    let missing: Vec<String> = words
        .into_iter()
        .filter(|word| !text.contains(&format!("`{word}`")))
        .collect();
    assert!(missing.is_empty(), "{document} lacks {missing:?}");
}

#[test]
fn the_documents_name_every_method_and_every_data_set() {
    let methods = ttac::method::method_names();
    check_named(
        "docs/methods.md",
        methods.into_iter().map(|(name, _)| name.to_owned()),
    );
    check_named(
        "docs/data-sets.md",
        ttac::data::data_names().map(str::to_owned),
    );
}
