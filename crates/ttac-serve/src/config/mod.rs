//! The configuration of a service: a TOML file, its defaults, and everything that is wrong with it at once.

mod amount;
mod check;
mod listen;
mod sections;

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

pub use check::{Loaded, ModelCheck};
pub use listen::ListenConfig;
pub use sections::{
    Durability, GuardBounds, LearnConfig, ModeName, ModelConfig, Promote, StateConfig,
    ThreadsConfig,
};

use crate::{Error, Result};

/// What is served, and how. Without a file every section has its defaults, and there is no model.
///
/// ```
/// use ttac_serve::config::Config;
///
/// let text = r#"
///     [model.shapes]
///     file = "model.safetensors"
///     anchors = "anchors.safetensors"
///     [learn]
///     flush_after = "30s"
/// "#;
/// let config = Config::parse(text, "models".as_ref())?;
/// assert!(config.models["shapes"].file.ends_with("models/model.safetensors"));
/// assert_eq!(config.learn.backlog, 4);
///
/// let error = Config::parse("[learn]\nbaklog = 2", "".as_ref()).unwrap_err();
/// assert!(error.to_string().contains("did you mean `backlog`?"));
/// # Ok::<(), ttac_serve::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// The models by name.
    pub models: BTreeMap<String, ModelConfig>,
    /// When and what is learned.
    pub learn: LearnConfig,
    /// What is kept on disk and in memory.
    pub state: StateConfig,
    /// Who computes.
    pub threads: ThreadsConfig,
    /// The bounds of healthy learning.
    pub guards: GuardBounds,
    /// Where the service is reached, and by whom.
    pub listen: ListenConfig,
}

/// The names of the sections, for advice.
const SECTIONS: [&str; 6] = ["model", "learn", "state", "threads", "guards", "listen"];

impl Config {
    /// Reads a file. Paths in it are relative to its folder.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(Error::io("read", path))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Self::parse(&text, folder).map_err(|error| match error {
            Error::Config { problems, .. } => Error::Config {
                path: Some(path.to_owned()),
                problems,
            },
            error => error,
        })
    }

    /// Reads a text whose paths are relative to a folder. The error lists everything that is wrong with it.
    pub fn parse(text: &str, folder: &Path) -> Result<Self> {
        let mut table = text.parse::<Table>().map_err(|error| Error::Config {
            path: None,
            problems: vec![error.to_string()],
        })?;
        Self::take(&mut table, folder)
    }

    /// Takes the engine's sections out of a table, and refuses what is left over. Who reads sections of their own takes them out first.
    pub fn take(table: &mut Table, folder: &Path) -> Result<Self> {
        let mut problems = Vec::new();
        let mut config = Self {
            learn: section(table, "learn", &mut problems),
            state: section(table, "state", &mut problems),
            threads: section(table, "threads", &mut problems),
            guards: section(table, "guards", &mut problems),
            listen: section(table, "listen", &mut problems),
            models: BTreeMap::new(),
        };
        match table.remove("model") {
            None => {}
            Some(Value::Table(models)) => {
                for (name, keys) in models {
                    let place = format!("model.{name}");
                    let mut one = Table::from_iter([(place.clone(), keys)]);
                    let mut model: ModelConfig = section(&mut one, &place, &mut problems);
                    model.relative_to(folder);
                    config.models.insert(name, model);
                }
            }
            Some(_) => problems.push("expected `[model.NAME]`, found a value `model`".to_owned()),
        }
        for name in table.keys() {
            let advice = match ttac::nearest(name, SECTIONS) {
                Some(known) => format!("did you mean `[{known}]`?"),
                None => format!("the known ones are `[{}]`", SECTIONS.join("]`, `[")),
            };
            problems.push(format!("unknown section `[{name}]`; {advice}"));
        }
        config.state.relative_to(folder);
        config.listen.relative_to(folder);
        problems.extend(config.problems());
        if problems.is_empty() {
            return Ok(config);
        }
        Err(Error::Config {
            path: None,
            problems,
        })
    }

    /// Lists every value that is outside its range.
    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        problems.extend(self.learn.problems());
        problems.extend(self.state.problems());
        problems.extend(self.threads.problems());
        problems.extend(self.guards.problems());
        for (name, model) in &self.models {
            let found = model.problems(name, self);
            problems.extend(
                found
                    .into_iter()
                    .map(|problem| format!("[model.{name}] {problem}")),
            );
        }
        problems
    }
}

/// Takes a section out of a table, key by key, so that each wrong one is named. What cannot be read has its default.
pub(crate) fn section<T: Default + Serialize + DeserializeOwned>(
    table: &mut Table,
    name: &str,
    problems: &mut Vec<String>,
) -> T {
    let keys = match table.remove(name) {
        None => return T::default(),
        Some(Value::Table(keys)) => keys,
        Some(other) => {
            let found = other.type_str();
            problems.push(format!("`{name}`: expected a section, found a {found}"));
            return T::default();
        }
    };
    let known = serde_json::to_value(T::default()).expect("sections are plain JSON");
    let known: Vec<&str> = known
        .as_object()
        .expect("a section is a map")
        .keys()
        .map(String::as_str)
        .collect();
    let mut good = Table::new();
    for (key, value) in keys {
        if !known.contains(&key.as_str()) {
            let advice = match ttac::nearest(&key, known.iter().copied()) {
                Some(word) => format!("did you mean `{word}`?"),
                None => format!("the known ones are `{}`", known.join("`, `")),
            };
            problems.push(format!("[{name}] unknown key `{key}`; {advice}"));
            continue;
        }
        let alone = Table::from_iter([(key.clone(), value.clone())]);
        match alone.try_into::<T>() {
            Ok(_) => {
                good.insert(key, value);
            }
            Err(error) => problems.push(format!("[{name}] `{key}`: {}", error.message())),
        }
    }
    good.try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn problems(text: &str) -> Vec<String> {
        match Config::parse(text, Path::new("")) {
            Err(Error::Config { problems, .. }) => problems,
            other => panic!("expected problems, found {other:?}"),
        }
    }

    #[test]
    fn a_whole_file_is_read() {
        let text = r#"
            [model.cifar]
            file = "resnet20.safetensors"
            anchors = "/data/anchors.safetensors"
            method = "ttac"
            batch = 64
            mode = "canary"
            promote = "labels"
            set = { learning_rate = 0.001 }
            [learn]
            flush_after = "5m"
            [state]
            folder = "state"
            durability = "power"
            memory = "4GB"
            [threads]
            predict = 1
            [guards]
            drift = 0.5
        "#;
        let config = Config::parse(text, Path::new("/etc/ttac")).unwrap();
        let model = &config.models["cifar"];
        assert_eq!(model.file, Path::new("/etc/ttac/resnet20.safetensors"));
        assert_eq!(
            model.anchors.as_deref(),
            Some(Path::new("/data/anchors.safetensors"))
        );
        assert_eq!((model.batch, model.mode), (64, ModeName::Canary));
        assert_eq!(config.learn.flush_after, Duration::from_mins(5));
        assert_eq!(
            config.state.folder.as_deref(),
            Some(Path::new("/etc/ttac/state"))
        );
        assert_eq!(config.state.memory, 4_000_000_000);
        assert_eq!(config.guards.drift, 0.5);
    }

    #[test]
    fn everything_that_is_wrong_is_said_at_once_with_advice() {
        let found = problems(
            "[model.a]\nmetod = 'ttac'\nbatch = 'many'\n[learn]\nduty = 3.0\nbaklog = 1\n[stat]\n[threads]\npredict = -1\n",
        );
        let text = found.join("\n");
        for part in [
            "[model.a] unknown key `metod`; did you mean `method`?",
            "[model.a] `batch`: invalid type: string \"many\"",
            "[model.a] `file` is missing",
            "`duty` must be above 0 and at most 1, found 3",
            "[learn] unknown key `baklog`; did you mean `backlog`?",
            "unknown section `[stat]`; did you mean `[state]`?",
            "[threads] `predict`",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn what_is_no_toml_is_an_error_with_its_place() {
        let error = Config::parse("[model\n", Path::new("")).unwrap_err();
        assert!(error.to_string().contains("line 1"), "{error}");
    }
}
