//! Profile-guided optimisation: a first build that counts its branches runs the load of `cargo xtask bench`, and a
//! second build is laid out by those counts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::load_tool;
use super::stamp::Stamp;
use crate::Compiler;
use xtask_tools::{process, progress, workspace};

/// Builds twice with `compile`, which takes a target directory and further compiler flags, and returns the directory of
/// its programs. Between the two builds the product, called `program` in that directory, is trained, unless it is the
/// same program as in the last training. Returns the directory of the second build.
///
/// # Errors
/// Fails if something does not compile, rustup has no llvm-profdata, or the training fails.
pub fn guided(program: &str, compile: impl Fn(&Path, &[String]) -> Result<PathBuf>) -> Result<PathBuf> {
    let profdata = Compiler::active()?.profdata()?;
    let place = workspace::target_dir().join("guided");
    let training = place.join("training");
    let [counts, merged, trained] = ["counts", "merged.profdata", "program.sha256"].map(|name| training.join(name));
    progress::note("building what counts its branches");
    // Each crate counts its own branches, before link-time optimisation, which would take minutes here. Cargo's setting
    // for that would also give the crates other names than in the second build, and no function would find its counts.
    let flags = [&format!("-Cprofile-generate={}", counts.display()), "-Clto=off", "-Clinker-plugin-lto=off"];
    let counting = compile(&place.join("counting"), &flags.map(str::to_owned))?;
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
    compile(&place, &[format!("-Cprofile-use={}", merged.display())])
}
