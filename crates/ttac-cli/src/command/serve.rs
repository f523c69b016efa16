//! `ttac serve`: answers requests, and learns from them beside that.

use std::sync::Arc;

use serde_json::json;
use ttac_serve::Server;
use ttac_serve::config::{Config, ModelCheck};
use ttac_serve::engine::Engine;

use super::print;
use crate::args::{Options, Serve};

pub fn run(args: &Serve, options: &Options) -> anyhow::Result<()> {
    let mut config = Config::load(&args.config)?;
    overrule(&mut config, args);
    if args.check {
        return check(&config, options);
    }
    let listen = config.listen.clone();
    let engine = Arc::new(Engine::start(config)?);
    let server = Server::bind(&listen, engine.clone())?;
    let (rest, admin) = (server.address("rest"), server.address("admin"));
    let addresses = json!({ "rest": rest, "admin": admin });
    let shown = format!("predictions at {rest}\npage, streams and metrics at {admin}");
    print(options.json, &addresses, &shown)?;
    server.run()?;
    engine.stop();
    Ok(())
}

/// Lets arguments overrule the file.
fn overrule(config: &mut Config, args: &Serve) {
    let listen = &mut config.listen;
    listen.host = args.host.unwrap_or(listen.host);
    listen.rest = args.rest.unwrap_or(listen.rest);
    listen.admin = args.admin.unwrap_or(listen.admin);
}

/// Says what would be served.
fn check(config: &Config, options: &Options) -> anyhow::Result<()> {
    let problems = config.listen.problems();
    if !problems.is_empty() {
        return Err(ttac_serve::Error::Config {
            path: None,
            problems,
        }
        .into());
    }
    let models = config.check()?;
    let result: Vec<_> = models
        .iter()
        .map(|model| {
            json!({
                "name": model.name, "architecture": model.architecture, "classes": model.classes,
                "method": model.method, "stream_bytes": model.stream_bytes, "warnings": model.warnings,
            })
        })
        .collect();
    let lines: Vec<String> = models.iter().map(|model| in_words(model, config)).collect();
    print(
        options.json,
        &json!({ "models": result }),
        &lines.join("\n"),
    )
}

fn in_words(model: &ModelCheck, config: &Config) -> String {
    let megabytes = model.stream_bytes as f64 / 1e6;
    let streams = config.state.memory / model.stream_bytes.max(1);
    let mut text = format!(
        "{}: {} with {} classes, {}; a stream takes about {megabytes:.1} MB, so that there is memory for {streams}",
        model.name, model.architecture, model.classes, model.method
    );
    for warning in &model.warnings {
        text += "\n  warning: ";
        text += warning;
    }
    text
}
