//! The commands about the program itself: `version`, `completion` and `man`.

use std::{io, path::PathBuf, time::Duration};

use anyhow::Context as _;
use clap::{Args, CommandFactory as _, ValueEnum};
use clap_complete::Shell;
use serde_json::json;

use super::{configuration::NodeClient, print};
use crate::config::cli::Cli;

/// Maximum time for the answer of a process.
const TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub(crate) struct VersionArgs {
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = VersionFormat::Text)]
    output: VersionFormat,

    /// Socket of a running process; without one, only this program's version is shown.
    #[arg(long, value_name = "PATH", default_value = "/run/xdp-ingress-pod/probe.sock")]
    socket: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum VersionFormat {
    Text,
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionArgs {
    /// The shell. For bash: `source <(xdp-ingress completion bash)`.
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Existing directory for the pages, such as `/usr/local/share/man/man1`.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Prints the versions of this program and of the process at the socket.
///
/// # Errors
/// Fails if standard output cannot be written, or a process at the socket does not answer.
pub(crate) fn version(args: VersionArgs) -> anyhow::Result<()> {
    let VersionArgs { output, socket } = args;
    let process = match NodeClient::is_there(&socket) {
        true => Some(NodeClient::new(socket, TIMEOUT).get("node", &[])?["version"].clone()),
        false => None,
    };
    match output {
        VersionFormat::Json => print::json(&json!({ "client": env!("CARGO_PKG_VERSION"), "process": process })),
        VersionFormat::Text => {
            let process = process.as_ref().and_then(serde_json::Value::as_str);
            let process = process.map(|version| format!("process: {version}\n")).unwrap_or_default();
            print::text(&format!("client: {}\n{process}", env!("CARGO_PKG_VERSION")))
        }
    }
}

/// Prints a completion script.
///
/// # Errors
/// Fails if standard output cannot be written.
pub(crate) fn completion(CompletionArgs { shell }: CompletionArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "xdp-ingress", &mut script);
    print::text(&String::from_utf8_lossy(&script))
}

/// Writes a manual page for each command.
///
/// # Errors
/// Fails if the directory does not exist or cannot be written.
pub(crate) fn man(ManArgs { directory }: &ManArgs) -> anyhow::Result<()> {
    let is_directory = directory
        .metadata()
        .and_then(|file| if file.is_dir() { Ok(()) } else { Err(io::ErrorKind::NotADirectory.into()) });
    is_directory
        .and_then(|()| clap_mangen::generate_to(Cli::command(), directory))
        .with_context(|| format!("cannot write manual pages into `{}`", directory.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_manual_page() {
        let home = tempfile::tempdir().expect("a directory");
        man(&ManArgs { directory: home.path().to_owned() }).expect("written");
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let page = home.path().join(format!("xdp-ingress-{}.1", command.get_name()));
            assert!(page.exists(), "{}", page.display());
        }
        let error = man(&ManArgs { directory: home.path().join("missing") }).expect_err("no directory");
        assert!(error.to_string().contains("missing"));
    }
}
