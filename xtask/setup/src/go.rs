//! The Go compiler, which builds programs without a package from modules of this project. It does not install Go.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use xtask_tools::{process, workspace};

/// Returns the `go` of this machine.
///
/// # Errors
/// Fails if there is none; the error names `what`, which cannot be built.
pub fn find(what: &str) -> Result<PathBuf> {
    process::find_program("go").with_context(|| {
        format!("{what} must be built by Go 1.26 or newer, which is not on `PATH`; install it from https://go.dev/dl")
    })
}

/// Returns the `go build` of `package` into `output`, with the versions that `module` pins. `flags` are passed to the
/// linker in addition to the flags that remove debug information.
pub fn build(go: &Path, module: &str, package: &str, flags: &str, output: &Path) -> Command {
    let mut command = Command::new(go);
    command.args(["build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags"]);
    command.arg(format!("-s -w{flags}")).arg("-o").arg(output).arg(package);
    // Flags and workspaces of the user's other Go projects must not change these programs.
    command.current_dir(workspace::root().join(module));
    command.env("CGO_ENABLED", "0").env("GOFLAGS", "").env("GOWORK", "off");
    command
}
