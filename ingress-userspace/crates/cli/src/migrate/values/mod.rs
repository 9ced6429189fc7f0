//! `migrate values`: converts values of ingress-nginx' chart into values of this controller's chart, with a verdict on each.

mod convert;
mod render;
#[cfg(test)]
mod tests;

use std::{
    fs,
    io::{self, Read as _},
    path::Path,
    process::ExitCode,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

pub(super) use convert::{Converted, convert};

use super::arguments::{ValuesArgs, ValuesFormat};
use crate::{FINDINGS, palette::Palette, print};

/// Maximum size of a file of values, far above that of any release.
const MAX_BYTES: u64 = 16 << 20;

/// Runs `migrate values`.
///
/// # Errors
/// Fails if the file cannot be read, is no YAML or no map, or standard output cannot be written.
pub fn values(args: &ValuesArgs) -> Result<ExitCode> {
    let ValuesArgs { file, output, all, no_color } = args;
    let converted = read(file)?;
    let converted = if *all { converted.with_all() } else { converted };
    print::text(&shown(&converted, file, *output, Palette::of_stdout(*no_color))?)?;
    Ok(if converted.rows.iter().any(|row| row.is_lost) { FINDINGS.into() } else { ExitCode::SUCCESS })
}

fn read(file: &Path) -> Result<Converted> {
    let what = || format!("cannot read the values in `{}`", file.display());
    let mut text = String::new();
    // A pipe has no length, so the limit holds for what is read.
    let limit = MAX_BYTES + 1;
    let _length = if file == Path::new("-") {
        io::stdin().take(limit).read_to_string(&mut text).with_context(what)?
    } else {
        fs::File::open(file).with_context(what)?.take(limit).read_to_string(&mut text).with_context(what)?
    };
    ensure!(text.len() as u64 <= MAX_BYTES, "`{}` has more than {MAX_BYTES} bytes", file.display());
    parse(&text).with_context(what)
}

/// Parses values and converts them. An empty text, or `null` as Helm prints it, stands for no values.
fn parse(text: &str) -> Result<Converted> {
    let is_empty = text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'));
    let values = if is_empty { Value::Null } else { serde_saphyr::from_str(text).map_err(without_source)? };
    ensure!(values.is_object() || values.is_null(), "values are a map of names; this is none");
    Ok(convert(&values))
}

/// Returns an error without the lines that it is about: values hold passwords.
#[allow(clippy::needless_pass_by_value, reason = "it is passed to `map_err`")]
pub(crate) fn without_source(error: serde_saphyr::Error) -> anyhow::Error {
    anyhow::anyhow!("{}", print::one_line(&error.without_snippet().to_string()))
}

fn shown(converted: &Converted, file: &Path, output: ValuesFormat, palette: Palette) -> Result<String> {
    Ok(match output {
        ValuesFormat::Values => render::values(converted, &file.display().to_string())?,
        ValuesFormat::Table => render::table(converted, false, palette),
        ValuesFormat::Wide => render::table(converted, true, palette),
        ValuesFormat::Markdown => render::markdown(converted),
        ValuesFormat::Json => format!("{:#}\n", serde_json::to_value(converted)?),
        ValuesFormat::Yaml => serde_saphyr::to_string(converted)?,
    })
}
