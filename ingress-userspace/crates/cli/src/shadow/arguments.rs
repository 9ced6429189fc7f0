//! Options of `shadow`.

use std::path::PathBuf;

use clap::Args;

use crate::{check::InstallationArgs, print::Format};

// The structs of options have no doc comment: clap would show it in place of the description of each command.
#[derive(Debug, Args)]
pub struct ShadowArgs {
    /// Access log of ingress-nginx; `-` reads standard input.
    #[arg(long, value_name = "FILE", required_unless_present = "print_format")]
    pub log: Option<PathBuf>,

    /// Format of the lines, as in the setting `log-format-upstream`. Default: that setting of the installation, or else the
    /// default of ingress-nginx.
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<String>,

    /// Print a patch for the ConfigMap of ingress-nginx, with a format that has all that this command needs, and end.
    #[arg(long, conflicts_with_all = ["log", "format"])]
    pub print_format: bool,

    #[command(flatten)]
    pub installation: InstallationArgs,

    /// Form of the report.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    pub output: Format,

    /// Print without colours. Colours are for terminals only, and the environment variable NO_COLOR turns them off, too.
    #[arg(long)]
    pub no_color: bool,
}
