//! Looking at what a configuration names, before a port opens.

use std::path::PathBuf;

use ttac::burn::tensor::Device;
use ttac::{Model, Session, SourceStatistics};

use super::{Config, ModelConfig};
use crate::error::{in_full, with_causes};
use crate::{Error, Result};

/// A model that is ready to be served.
pub struct Loaded {
    /// Its name in the configuration.
    pub name: String,
    /// Its section.
    pub config: ModelConfig,
    /// The network.
    pub model: Model,
    /// Its source statistics.
    pub anchors: Option<SourceStatistics>,
    /// A digest of the file of the source statistics, or `none`.
    pub anchors_digest: String,
}

/// What is known of a model before it is served.
#[derive(Clone, Debug)]
pub struct ModelCheck {
    /// Its name.
    pub name: String,
    /// Its architecture.
    pub architecture: String,
    /// How many classes it has.
    pub classes: usize,
    /// The name of the method.
    pub method: String,
    /// The memory that a stream takes, about, in bytes.
    pub stream_bytes: u64,
    /// What was asked for and cannot be had.
    pub warnings: Vec<String>,
}

impl Loaded {
    /// Reads the files of a model, and tries whether its method can be served.
    pub fn read(name: &str, config: &ModelConfig) -> Result<Self> {
        let model = Model::load(&config.file, &Device::flex())?;
        let mut digest = "none".to_owned();
        let anchors = match &config.anchors {
            Some(path) => {
                let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
                blake3::hash(&bytes).to_hex()[..16].clone_into(&mut digest);
                Some(SourceStatistics::load(path)?)
            }
            None => None,
        };
        let loaded = Self {
            name: name.to_owned(),
            config: config.clone(),
            model,
            anchors,
            anchors_digest: digest,
        };
        let session = loaded.session()?;
        if !session.predicts_alone() {
            return Err(refused(format!(
                "`{}` answers an image by the rest of its batch, so that one client would change the answers to another; choose a method \
                 that predicts by stored norm statistics, such as `ttac`, and `shares` other than `lame`",
                config.method
            )));
        }
        let fewest = session.needs().fewest_samples;
        if fewest > config.fewest() {
            return Err(refused(format!(
                "`{}` learns from at least {fewest} images at a time, expected at most {}",
                config.method,
                config.fewest()
            )));
        }
        Ok(loaded)
    }

    /// Makes the session of a new stream: that of `ttac adapt --predict-first`.
    pub fn session(&self) -> Result<Session> {
        let builder = Session::builder(&self.model).spec(&self.config.spec())?;
        let builder = match &self.anchors {
            Some(anchors) => builder.anchors(anchors),
            None => builder,
        };
        Ok(builder.build()?)
    }

    /// Says what a stream takes and what somebody should know.
    pub fn check(&self, keep_good: usize) -> Result<ModelCheck> {
        let session = self.session()?;
        let (header, arrays) = session.state()?.into_parts();
        let kept = arrays.0.values().map(|array| {
            let values: usize = array.shape().iter().product();
            4 * values as u64
        });
        let kept = kept.sum::<u64>() + header.len() as u64;
        let image = self.model.input.sample_bytes() as u64;
        // The session, what is published, and the good versions; and images that wait or are in the queue.
        let images = (self.config.queue + 2 * self.config.batch) as u64 * image;
        Ok(ModelCheck {
            name: self.name.clone(),
            architecture: self.model.architecture.clone(),
            classes: self.model.classes.len(),
            method: self.config.method.clone(),
            stream_bytes: kept * (3 + keep_good as u64) + images,
            warnings: session.warnings().to_vec(),
        })
    }
}

fn refused(problem: String) -> Error {
    Error::Config {
        path: None,
        problems: vec![problem],
    }
}

impl Config {
    /// Reads all models and their anchors, or says everything that is wrong with them.
    pub fn read_models(&self) -> Result<Vec<Loaded>> {
        let mut problems = Vec::new();
        let mut loaded = Vec::new();
        if self.models.is_empty() {
            problems.push("there is no `[model.NAME]`, so there is nothing to serve".to_owned());
        }
        for (name, config) in &self.models {
            match Loaded::read(name, config) {
                Ok(one) => loaded.push(one),
                Err(Error::Config {
                    problems: found, ..
                }) => {
                    let found = found.into_iter();
                    problems.extend(found.map(|problem| format!("[model.{name}] {problem}")));
                }
                Err(error) => {
                    let hint = error
                        .hint()
                        .map_or(String::new(), |hint| format!("; {hint}"));
                    problems.push(format!("[model.{name}] {}{hint}", in_full(&error)));
                }
            }
        }
        if problems.is_empty() {
            return Ok(loaded);
        }
        Err(Error::Config {
            path: None,
            problems,
        })
    }

    /// Tries everything that a start would try, but opens nothing: reads models and anchors, and looks at the state folder.
    pub fn check(&self) -> Result<Vec<ModelCheck>> {
        let models = self.read_models()?;
        if let Some(folder) = &self.state.folder {
            writable(folder)?;
        }
        let keep_good = self.state.keep_good;
        models.iter().map(|model| model.check(keep_good)).collect()
    }
}

/// Refuses a state folder that cannot be written to.
fn writable(folder: &PathBuf) -> Result<()> {
    let problem = |error: std::io::Error| Error::Config {
        path: None,
        problems: vec![format!(
            "[state] `folder`: cannot write to `{}`: {}",
            folder.display(),
            with_causes(&error)
        )],
    };
    std::fs::create_dir_all(folder).map_err(problem)?;
    let trial = folder.join(".ttac-writable");
    std::fs::write(&trial, b"").map_err(problem)?;
    std::fs::remove_file(&trial).map_err(problem)
}
