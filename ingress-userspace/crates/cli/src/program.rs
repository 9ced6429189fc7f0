//! The commands about the program itself: `version`, `completion` and `man`.

use std::{io, path::PathBuf, time::Duration};

use anyhow::Context as _;
use clap::{Args, Command};
use clap_complete::Shell;
use serde_json::json;

use crate::{
    configuration::NodeClient,
    print::{self, OutputArgs},
};

/// Maximum time for the answer of a process.
const TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub struct VersionArgs {
    #[command(flatten)]
    output: OutputArgs,

    /// Socket of a running process; without one, only this program's version is shown.
    #[arg(long, value_name = "PATH", default_value = "/run/xdp-ingress-pod/probe.sock")]
    socket: PathBuf,
}

#[derive(Debug, Args)]
pub struct CompletionArgs {
    /// The shell. For bash: `source <(xdp-ingress completion bash)`.
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, Args)]
pub struct ManArgs {
    /// Existing directory for the pages, such as `/usr/local/share/man/man1`.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Prints the versions of this program and of the process at the socket.
///
/// # Errors
/// Fails if standard output cannot be written, or a process at the socket does not answer.
pub fn version(args: VersionArgs) -> anyhow::Result<()> {
    let VersionArgs { output, socket } = args;
    let read = || match NodeClient::is_there(&socket) {
        true => Ok(Some(NodeClient::new(socket.clone(), TIMEOUT).get("node", &[])?["version"].clone())),
        false => Ok(None),
    };
    print::show(&output, read, |process, style| {
        style.render(&json!({ "client": env!("CARGO_PKG_VERSION"), "process": process }), || {
            let process = process.as_ref().and_then(serde_json::Value::as_str);
            let process = process.map(|version| format!("process: {version}\n")).unwrap_or_default();
            format!("client: {}\n{process}", env!("CARGO_PKG_VERSION"))
        })
    })?;
    Ok(())
}

/// Prints a completion script for `command`.
///
/// # Errors
/// Fails if standard output cannot be written.
pub fn completion(CompletionArgs { shell }: CompletionArgs, mut command: Command) -> anyhow::Result<()> {
    let mut script = Vec::new();
    let name = command.get_name().to_owned();
    clap_complete::generate(shell, &mut command, name, &mut script);
    print::text(&String::from_utf8_lossy(&script))
}

/// Writes a manual page for `program` and each of its commands.
///
/// # Errors
/// Fails if the directory does not exist or cannot be written.
pub fn man(ManArgs { directory }: &ManArgs, program: Command) -> anyhow::Result<()> {
    let is_directory = directory
        .metadata()
        .and_then(|file| if file.is_dir() { Ok(()) } else { Err(io::ErrorKind::NotADirectory.into()) });
    is_directory
        .and_then(|()| clap_mangen::generate_to(program, directory))
        .with_context(|| format!("cannot write manual pages into `{}`", directory.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_manual_page() {
        let home = tempfile::tempdir().expect("a directory");
        let program = || Command::new("program").subcommand(Command::new("one")).subcommand(Command::new("other"));
        man(&ManArgs { directory: home.path().to_owned() }, program()).expect("written");
        for page in ["program.1", "program-one.1", "program-other.1"] {
            assert!(home.path().join(page).exists(), "{page}");
        }
        let error = man(&ManArgs { directory: home.path().join("missing") }, program()).expect_err("no directory");
        assert!(error.to_string().contains("missing"));
    }
}
