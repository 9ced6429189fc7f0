//! Sets up logging. What is logged, and under which target, is up to the modules.

use std::io::IsTerminal;

use anyhow::Context;
use tracing_subscriber::{EnvFilter, fmt};

use crate::config::cli::LogFormat;

/// Logs to standard error, coloured only on a terminal and without `NO_COLOR` (no-color.org).
///
/// # Errors
/// If `filter` cannot be parsed, or logging is set up already.
pub(crate) fn init(filter: &str, format: LogFormat) -> anyhow::Result<()> {
    // What its watchers warn of is told once, and with what it means, by `control::source`. Its client warns with the whole
    // body of an answer that it cannot read, which may be a Secret's.
    let filter = EnvFilter::try_new(format!("kube_runtime=error,kube_client=error,{filter}"))
        .with_context(|| format!("`--log {filter}` is not a level or list of target=level directives"))?;
    let ansi = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let builder = fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(ansi);
    match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    }
    .map_err(|error| anyhow::anyhow!(error).context("cannot set up logging"))
}
