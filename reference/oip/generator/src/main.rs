//! Makes the Rust of the services in `proto` and writes it into a folder:
//!
//! ```text
//! ttac-oip-generator PROTO-FOLDER OUT-FOLDER
//! ```

use std::path::{Path, PathBuf};

/// The descriptions, each of one package.
const FILES: [&str; 2] = ["inference.proto", "health.proto"];

fn main() {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(proto), Some(out), None) = (arguments.next(), arguments.next(), arguments.next())
    else {
        eprintln!("error: expected two arguments, the folder of the descriptions and the folder of the code");
        std::process::exit(2);
    };
    if let Err(error) = generate(&proto, &out) {
        eprintln!("error: {error}");
        std::process::exit(2);
    }
}

fn generate(proto: &Path, out: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let described = protox::compile(FILES, [proto])?;
    tonic_prost_build::configure()
        .build_transport(false)
        .codec_path("crate::grpc::codec::Codec")
        .out_dir(out)
        .compile_fds(described)?;
    Ok(())
}
