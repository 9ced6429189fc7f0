//! Puts the object with the kernel programs where `src/object.rs` embeds it. Compiles nothing: without an object there
//! is an empty one, and the datapath says so when it is opened.

use std::{env, fs, io, path::PathBuf};

/// Path of the object, if not the usual one.
const OVERRIDE: &str = "INGRESS_EBPF_OBJECT";
/// Where `cargo xtask build-ebpf` leaves the object, seen from this package.
const USUAL: &str = "../../../target/ebpf/ingress-ebpf.o";

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={OVERRIDE}");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("`OUT_DIR` is not set"))?);
    let object = match env::var_os(OVERRIDE) {
        Some(path) => read(PathBuf::from(path))?,
        None => {
            let path = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join(USUAL);
            // A path that does not exist makes cargo run this script each time, which is cheap and notices the object when
            // it appears.
            if path.exists() {
                read(path)?
            } else {
                println!("cargo::rerun-if-changed={}", path.display());
                Vec::new()
            }
        }
    };
    let target = out.join("ingress-ebpf.o");
    // Only a changed object makes the crate compile again.
    if fs::read(&target).ok().as_ref() != Some(&object) {
        fs::write(target, object)?;
    }
    Ok(())
}

fn read(path: PathBuf) -> io::Result<Vec<u8>> {
    println!("cargo::rerun-if-changed={}", path.display());
    fs::read(&path).map_err(|error| io::Error::new(error.kind(), format!("cannot read `{}`: {error}", path.display())))
}
