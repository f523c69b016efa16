use std::collections::BTreeSet;
use std::path::Path;

use serde::Serialize;
use ttac_serve::config::{
    GuardBounds, LearnConfig, ListenConfig, ModelConfig, StateConfig, ThreadsConfig,
};

use crate::http::{World, get};

/// The names of our metrics in a text; those of a histogram's parts are that of the histogram.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c| !is_part(c));
    let ours = words.filter(|word| word.starts_with("ttac_"));
    let parts = ["_bucket", "_sum", "_count"];
    ours.map(|word| {
        let whole = parts.iter().find_map(|part| word.strip_suffix(part));
        whole.unwrap_or(word).to_owned()
    })
    .collect()
}

#[test]
fn alert_rules_and_the_board_ask_for_metrics_that_there_are() {
    let world = World::new();
    let text = String::from_utf8(world.admin(get("/metrics")).body).unwrap();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let known: BTreeSet<&str> = types.filter_map(|line| line.split(' ').next()).collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../reference/serve");
    for file in ["alerts.yml", "board.json"] {
        let asked = metrics_in(&std::fs::read_to_string(folder.join(file)).unwrap());
        assert!(asked.len() > 5, "{file} asks for {asked:?}");
        for name in asked {
            assert!(known.contains(name.as_str()), "{file} asks for `{name}`");
        }
    }
}

/// The keys of a section.
fn keys<T: Default + Serialize>() -> Vec<String> {
    let section = serde_json::to_value(T::default()).unwrap();
    section.as_object().unwrap().keys().cloned().collect()
}

#[test]
fn every_key_is_in_the_document() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let document = std::fs::read_to_string(root.join("docs/serving.md")).unwrap();
    let (_, tables) = document.split_once("## Every key").unwrap();
    for (section, keys) in [
        ("model.NAME", keys::<ModelConfig>()),
        ("learn", keys::<LearnConfig>()),
        ("state", keys::<StateConfig>()),
        ("threads", keys::<ThreadsConfig>()),
        ("listen", keys::<ListenConfig>()),
        ("guards", keys::<GuardBounds>()),
    ] {
        let (_, table) = tables.split_once(&format!("| `[{section}]` |")).unwrap();
        let table = table.split("\n\n").next().unwrap();
        for key in keys {
            assert!(table.contains(&format!("`{key}`")), "{section}: {key}");
        }
    }
}

#[test]
fn every_alert_is_explained() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let rules = std::fs::read_to_string(root.join("reference/serve/alerts.yml")).unwrap();
    let document = std::fs::read_to_string(root.join("docs/serving.md")).unwrap();
    let mut count = 0;
    for line in rules.lines() {
        if let Some(name) = line.trim().strip_prefix("- alert: ") {
            assert!(document.contains(&format!("`{name}`")), "{name}");
            count += 1;
        }
    }
    assert!(count > 5);
}
