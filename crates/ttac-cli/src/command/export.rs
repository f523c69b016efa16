//! `ttac export`: writes a checkpoint's weights for PyTorch.

use serde_json::json;
use ttac::checkpoint::{Checkpoint, export};

use super::print;
use crate::args::{Export, Options};
use crate::device;

pub fn run(args: &Export, options: &Options) -> anyhow::Result<()> {
    let checkpoint = Checkpoint::load(&args.model, &device::parse(&options.device)?)?;
    export(&checkpoint, &args.out)?;
    let out = args.out.display();
    let text = format!(
        "wrote {out}; in Python: model.load_state_dict(safetensors.torch.load_file(\"{out}\"))"
    );
    print(options.json, &json!({ "path": args.out }), &text)
}
