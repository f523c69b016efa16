//! `ttac export`: writes a checkpoint for PyTorch and other programs.

use anyhow::bail;
use serde_json::json;
use ttac::checkpoint::{Checkpoint, export, export_like, export_onnx};

use super::{print, program};
use crate::args::{Export, ExportFormat, Options};
use crate::device;

pub fn run(args: &Export, options: &Options) -> anyhow::Result<()> {
    let checkpoint = Checkpoint::load(&args.model, &device::parse(&options.device)?)?;
    let out = args.out.display();
    let how = match (&args.like, args.format) {
        (Some(_), Some(_)) => bail!("`--like` writes a `.pt2`: leave out `--format`"),
        (Some(original), None) => {
            let replaced = export_like(&checkpoint, original, &args.out)?;
            format!("{replaced} tensors replaced; in Python: torch.export.load(\"{out}\").module()")
        }
        (None, Some(ExportFormat::Onnx)) => {
            export_onnx(&checkpoint, &args.out, &program())?;
            "opset 17; images come in as [batch, 3, height, width], normalised".to_owned()
        }
        (None, Some(ExportFormat::StateDict) | None) => {
            export(&checkpoint, &args.out)?;
            format!("in Python: model.load_state_dict(safetensors.torch.load_file(\"{out}\"))")
        }
    };
    let text = format!("wrote {out}; {how}");
    print(options.json, &json!({ "path": args.out }), &text)
}
