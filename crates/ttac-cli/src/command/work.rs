//! `ttac work`: works for a queue, on any number of machines.

use std::time::Duration;

use serde_json::json;

use super::print;
use crate::args::{Options, Worker as Args};
use crate::device;
use crate::fleet::worker::{Options as WorkerOptions, Worker};

pub fn run(args: &Args, options: &Options) -> anyhow::Result<()> {
    let device = device::parse(&options.device)?;
    let told = WorkerOptions {
        until_empty: args.until_empty,
        checkpoint_every: Duration::from_secs(args.checkpoint_every.get()),
    };
    let done = Worker::new(&args.queue, &args.store, told, &device)?.run()?;
    print(
        options.json,
        &json!({ "done": done }),
        &format!("did {done} pieces of work"),
    )
}
