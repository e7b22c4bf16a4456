//! Generates the messages and clients from `protos/` into `OUT_DIR`; `src/lib.rs` includes them.

use std::{env, error::Error, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let protos = PathBuf::from("../../protos");
    let package = protos.join("slateboard/v1");
    let mut files = fs::read_dir(&package)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "proto"));
    files.sort();

    let mut config = tonic_prost_build::Config::new();
    if env::var_os("PROTOC").is_none() {
        config.protoc_executable(protoc_bin_vendored::protoc_bin_path()?);
    }
    println!("cargo:rerun-if-changed={}", package.display());
    println!("cargo:rerun-if-env-changed=PROTOC");
    tonic_prost_build::configure()
        .build_server(false)
        .compile_with_config(config, &files, &[protos])?;
    Ok(())
}
