//! Profile-guided optimisation: a build that counts its branches does what `cargo xtask bench` measures, and another one
//! is laid out by the counts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::stamp::Stamp;
use crate::setup::Compiler;
use crate::{bench, process, progress, workspace};

/// Builds twice by `compile`, which is given a target directory and further flags for the compiler, and gives the
/// directory of its programs; in between the product, which is `program` there, is trained, unless it was the last to be.
/// Gives the directory of the second build.
///
/// # Errors
/// When something does not compile, rustup has no llvm-profdata, or the training fails.
pub fn guided(program: &str, compile: impl Fn(&Path, &[String]) -> Result<PathBuf>) -> Result<PathBuf> {
    let profdata = Compiler::active()?.profdata()?;
    let place = workspace::target_dir().join("guided");
    let training = place.join("training");
    let [counts, merged, trained] = ["counts", "merged.profdata", "program.sha256"].map(|name| training.join(name));
    progress::note("building what counts its branches");
    let counting = compile(&place.join("counting"), &[format!("-Cprofile-generate={}", counts.display())])?;
    let mut stamp = Stamp::default();
    stamp.path(&counting, program)?;
    let stamp = stamp.finish();
    // Written last: a training that was interrupted has none.
    if !fs::read_to_string(&trained).is_ok_and(|last| last == stamp) {
        if training.exists() {
            fs::remove_dir_all(&training).with_context(|| format!("cannot remove `{}`", training.display()))?;
        }
        bench::train(&counting.join(program))?;
        process::run(Command::new(profdata).args(["merge", "--output"]).arg(&merged).arg(&counts))?;
        fs::write(&trained, stamp).with_context(|| format!("cannot write `{}`", trained.display()))?;
    }
    progress::note("building what the counts say");
    compile(&place, &[format!("-Cprofile-use={}", merged.display())])
}
