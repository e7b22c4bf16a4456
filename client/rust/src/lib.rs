//! Slateboard's API for Rust: messages and clients, generated at build time.

/// The package `slateboard.v1`.
#[allow(clippy::all, clippy::pedantic, missing_docs, rustdoc::all)]
pub mod v1 {
    tonic::include_proto!("slateboard.v1");
}
