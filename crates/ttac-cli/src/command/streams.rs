//! `ttac streams`: the streams that have a name.

use serde_json::json;
use ttac::experiment::StreamPreset;

use super::print;
use crate::args::Options;

pub fn run(options: &Options) -> anyhow::Result<()> {
    let streams = StreamPreset::all().iter();
    let result: Vec<_> = streams
        .map(|stream| {
            json!({
                "name": stream.name,
                "about": stream.about,
                "corruption": stream.corruption,
                "severity": stream.severity(),
                "order": stream.order,
                "batch-size": stream.batch_size,
                "reset": stream.reset,
            })
        })
        .collect();
    let text = format!("{}\n{}", StreamPreset::table(), StreamPreset::draw_all());
    print(options.json, &result, text.trim_end())
}
