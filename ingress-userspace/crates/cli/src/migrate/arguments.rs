//! Options of `migrate plan` and `migrate values`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::check::{InstallationArgs, Verdict};

/// Form of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PlanFormat {
    /// Numbered steps for a terminal.
    Text,
    /// The same as a page, with a box for each step.
    Markdown,
    Json,
    Yaml,
}

/// Form of converted values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ValuesFormat {
    /// A file of values for Helm, with comments.
    Values,
    /// A row for each value, with shortened texts.
    #[value(alias = "text")]
    Table,
    /// The same columns with the whole texts.
    Wide,
    /// The table for a page or a pull request.
    Markdown,
    /// Values and rows in one document.
    Json,
    Yaml,
}

// The structs of options have no doc comment: clap would show it in place of the description of each command.
#[derive(Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    pub installation: InstallationArgs,

    /// Namespace for xdp-ingress.
    #[arg(long, value_name = "NAME", default_value = "xdp-ingress", value_parser = namespace)]
    pub controller_namespace: String,

    /// Chart of xdp-ingress, as Helm names it: a directory, or an address that begins with `oci://`.
    #[arg(long, value_name = "CHART", default_value = "oci://registry.example.com/xdp-ingress/charts/xdp-ingress")]
    pub chart: String,

    /// Form of the plan.
    #[arg(short, long, value_enum, default_value_t = PlanFormat::Text)]
    pub output: PlanFormat,

    /// Exit with 3 if a finding of `check` has this verdict, or a more serious one.
    #[arg(long, value_enum, value_name = "VERDICT", default_value_t = Verdict::Differs)]
    pub fail_on: Verdict,

    /// Print without colours. Colours are for terminals only, and the environment variable NO_COLOR turns them off, too.
    #[arg(long)]
    pub no_color: bool,
}

/// Parses the name of a namespace: a DNS label (RFC 1123).
fn namespace(text: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let edges = [text.bytes().next(), text.bytes().next_back()];
    let is_name = text.len() <= 63
        && edges.iter().all(|byte| byte.is_some_and(is_plain))
        && text.bytes().all(|byte| is_plain(byte) || byte == b'-');
    is_name.then(|| text.to_owned()).ok_or_else(|| format!("`{text}` is no name of a namespace"))
}

#[derive(Debug, Args)]
pub struct ValuesArgs {
    /// Values of ingress-nginx' chart; `-` reads standard input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = ValuesFormat::Values)]
    pub output: ValuesFormat,

    /// Also show the verdict on each value of ingress-nginx' chart that the file does not set.
    #[arg(long)]
    pub all: bool,

    /// Print without colours. Colours are for terminals only, and the environment variable NO_COLOR turns them off, too.
    #[arg(long)]
    pub no_color: bool,
}
