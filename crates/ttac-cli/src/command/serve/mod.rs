//! `ttac serve`: answers requests, and learns from them beside that.

mod demo;

use std::sync::Arc;

use anyhow::Context;
use serde_json::json;
use ttac_serve::config::{Config, ModelCheck};
use ttac_serve::engine::{Engine, check_stored};
use ttac_serve::{Ended, Server};

use super::print;
use crate::args::{LogLevel, Options, Serve};
use crate::logs;

use demo::Demo;

pub fn run(args: &Serve, options: &Options) -> anyhow::Result<()> {
    let quiet = if args.demo {
        LogLevel::Warn
    } else {
        LogLevel::Info
    };
    logs::start(args.log_format, args.log_level.unwrap_or(quiet));
    let demo = args.demo.then(Demo::new).transpose()?;
    let mut config = match &demo {
        Some(demo) => demo.config()?,
        None => Config::load(args.config.as_ref().context("there is no configuration")?)?,
    };
    overrule(&mut config, args);
    // Before networks are read, which takes a while.
    refuse(config.listen.problems())?;
    if args.check {
        return check(&config, options);
    }
    let listen = config.listen.clone();
    let engine = Arc::new(Engine::start(config)?);
    let server = Server::bind(&listen, engine.clone())?;
    let addresses = addresses(&server);
    let [rest, grpc, admin] = ["rest", "grpc", "admin"].map(|name| server.address(name));
    tracing::info!(rest, grpc, admin, "requests are taken");
    let camera = demo.as_ref().map(|demo| demo.begin(&server, args.rate));
    print(options.json, &addresses.0, &addresses.1)?;
    let ended = server.run();
    if let Some(camera) = camera {
        camera.end();
    }
    if let Ok(Ended::AtOnce) = ended {
        tracing::warn!("ended at once; what was accepted is in the logs");
        // Nothing is dropped by itself any more, and the demo's files are of no use to anybody.
        drop(demo);
        std::process::exit(130);
    }
    engine.stop();
    tracing::info!("ended");
    ended?;
    Ok(())
}

/// Lets arguments overrule the file.
fn overrule(config: &mut Config, args: &Serve) {
    if let Some(folder) = &args.state {
        config.state.folder = Some(folder.clone());
    }
    let listen = &mut config.listen;
    listen.host = args.host.unwrap_or(listen.host);
    listen.rest = args.rest.unwrap_or(listen.rest);
    listen.grpc = args.grpc.unwrap_or(listen.grpc);
    listen.admin = args.admin.unwrap_or(listen.admin);
}

fn refuse(problems: Vec<String>) -> anyhow::Result<()> {
    if problems.is_empty() {
        return Ok(());
    }
    Err(ttac_serve::Error::Config {
        path: None,
        problems,
    }
    .into())
}

/// Names the open ports, for programs and for people.
fn addresses(server: &Server) -> (serde_json::Value, String) {
    let [rest, grpc, admin] = ["rest", "grpc", "admin"].map(|name| server.address(name));
    let shown =
        format!("predictions at {rest}, over gRPC at {grpc}\npage, streams and metrics at {admin}");
    (json!({ "rest": rest, "grpc": grpc, "admin": admin }), shown)
}

/// Says what would be served.
fn check(config: &Config, options: &Options) -> anyhow::Result<()> {
    let models = config.check()?;
    check_stored(config)?;
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
