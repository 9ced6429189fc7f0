//! The Go compiler, by which programs that nobody packages are built from modules of this project's. It does not install Go.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::{process, workspace};

/// The `go` of this machine.
///
/// # Errors
/// When there is none, for `what` that is to be built.
pub(super) fn find(what: &str) -> Result<PathBuf> {
    process::find_program("go").with_context(|| {
        format!("{what} must be built by Go 1.26 or newer, which is not on `PATH`; install it from https://go.dev/dl")
    })
}

/// `go build` of `package`, as `module` pins it, into `output`; `flags` are the linker's besides those that leave debug
/// information out.
pub(super) fn build(go: &Path, module: &str, package: &str, flags: &str, output: &Path) -> Command {
    let mut command = Command::new(go);
    command.args(["build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags"]);
    command.arg(format!("-s -w{flags}")).arg("-o").arg(output).arg(package);
    // Flags and work spaces meant for somebody else's Go must not change these programs.
    command.current_dir(workspace::root().join(module));
    command.env("CGO_ENABLED", "0").env("GOFLAGS", "").env("GOWORK", "off");
    command
}
