//! Profile-guided optimisation: a first build that counts its branches runs the load of `cargo xtask bench`, and a
//! second build is laid out by those counts.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::stamp::Stamp;
use super::{ReleaseBuild, load_tool};
use crate::Compiler;
use xtask_tools::{process, progress, workspace};

/// Crates that take no part in a request, and on which no crate of the request path depends. The first build does not
/// optimise them: their counts would be zero. A crate with other settings has other names, which loses the counts of all
/// crates that depend on it; here that is the program alone.
const UNTRAINED: [&str; 8] = [
    "ingress-cli",
    "ingress-control",
    "ingress-inspect",
    "ingress-node",
    "k8s-openapi",
    "kube-client",
    "kube-core",
    "kube-runtime",
];

/// Builds twice with `compile`, which returns the directory of its programs. Between the two builds the product, called
/// `program` in that directory, is trained, unless it is the same program as in the last training. Returns the directory
/// of the second build.
///
/// # Errors
/// Fails if something does not compile, rustup has no llvm-profdata, or the training fails.
pub fn guided(program: &str, compile: impl Fn(&ReleaseBuild) -> Result<PathBuf>) -> Result<PathBuf> {
    let profdata = Compiler::active()?.profdata()?;
    let place = workspace::target_dir().join("guided");
    let training = place.join("training");
    let [counts, merged, trained] = ["counts", "merged.profdata", "program.sha256"].map(|name| training.join(name));
    progress::note("building what counts its branches");
    // Each crate counts its own branches, before link-time optimisation, which would take minutes here. Cargo's setting
    // for that would also give the crates other names than in the second build, and no function would find its counts.
    let flags = [&format!("-Cprofile-generate={}", counts.display()), "-Clto=off", "-Clinker-plugin-lto=off"];
    let counting = compile(&ReleaseBuild {
        target_dir: place.join("counting"),
        flags: flags.map(str::to_owned).to_vec(),
        arguments: UNTRAINED.map(|name| format!("--config=profile.release.package.{name}.opt-level=0")).to_vec(),
    })?;
    let mut stamp = Stamp::default();
    stamp.path(&counting, program)?;
    let stamp = stamp.finish();
    // Written last: an interrupted training leaves no stamp.
    if !fs::read_to_string(&trained).is_ok_and(|last| last == stamp) {
        if training.exists() {
            fs::remove_dir_all(&training).with_context(|| format!("cannot remove `{}`", training.display()))?;
        }
        process::run(load_tool("xtask-bench")?.arg("train").arg(counting.join(program)))?;
        process::run(Command::new(profdata).args(["merge", "--output"]).arg(&merged).arg(&counts))?;
        fs::write(&trained, stamp).with_context(|| format!("cannot write `{}`", trained.display()))?;
    }
    progress::note("building what the counts say");
    let flags = vec![format!("-Cprofile-use={}", merged.display())];
    compile(&ReleaseBuild { target_dir: place, flags, arguments: Vec::new() })
}
