//! `debug bundle`: an archive for bug reports, with what the API says about a process. Secrets are not in it, because the
//! API has none. Addresses of clients are left out unless they are wanted (`redaction`).

mod redaction;

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result};
use clap::Args;
use flate2::{Compression, write::GzEncoder};
use serde_json::Value;

pub use redaction::Redaction;

use crate::configuration::NodeClient;

// No doc comment: clap would show it in place of the description of each command.
#[derive(Debug, Args)]
pub struct BundleArgs {
    /// File to write; `-` is standard output. Default: `xdp-ingress-bundle-TIME.tar.gz` in the current directory.
    #[arg(short, long, value_name = "PATH")]
    pub file: Option<PathBuf>,

    /// Keep addresses of clients, and add the deny list and the clients above their limits where the process shows them.
    #[arg(long)]
    pub with_addresses: bool,
}

/// Resources of the API that the bundle has, each with its form. Those with addresses of clients are in [`PRIVATE`].
const RESOURCES: [(&str, Form); 10] = [
    ("node", Form::One),
    ("drops", Form::One),
    ("interfaces", Form::One),
    ("workers", Form::One),
    ("changes", Form::One),
    ("hosts", Form::List),
    ("routes", Form::List),
    ("upstreams", Form::List),
    ("problems", Form::List),
    ("certificates", Form::List),
];
const PRIVATE: [(&str, Form); 2] = [("deny", Form::One), ("clients", Form::List)];

/// The form of a resource.
#[derive(Clone, Copy, Debug)]
enum Form {
    One,
    /// In pages.
    List,
}

/// A process that answers questions.
pub trait Resources {
    /// Returns the answer for one resource of the API.
    ///
    /// # Errors
    /// Fails if the process does not answer, or refuses.
    fn one(&self, name: &str) -> Result<Value>;
    /// Returns all items of a list of the API.
    ///
    /// # Errors
    /// Fails like [`Resources::one`].
    fn list(&self, name: &str) -> Result<Vec<Value>>;
    /// Returns the metrics.
    ///
    /// # Errors
    /// Fails like [`Resources::one`].
    fn metrics(&self) -> Result<String>;
}

impl Resources for NodeClient {
    fn one(&self, name: &str) -> Result<Value> {
        self.get(name, &[])
    }

    fn list(&self, name: &str) -> Result<Vec<Value>> {
        Self::list(self, name, &[])
    }

    fn metrics(&self) -> Result<String> {
        self.text("/metrics")
    }
}

/// An archive in the making.
#[derive(Debug)]
pub struct Bundle {
    /// Directory of all files.
    name: String,
    files: Vec<(String, String)>,
    failures: Vec<String>,
    redaction: Option<Redaction>,
}

// === impl Bundle ===

impl Bundle {
    /// Returns an empty bundle that keeps addresses of clients only `with_addresses`.
    #[must_use]
    pub fn new(with_addresses: bool) -> Self {
        let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).as_ref().map_or(0, Duration::as_secs);
        let time = ingress_inspect::timestamp(i64::try_from(seconds).unwrap_or(i64::MAX)).replace([':', '-'], "");
        Self {
            name: format!("xdp-ingress-bundle-{time}"),
            files: Vec::new(),
            failures: Vec::new(),
            redaction: (!with_addresses).then(Redaction::default),
        }
    }

    /// Adds everything that a process says, below `directory`; empty for the top.
    pub fn collect(&mut self, directory: &str, process: &impl Resources) {
        let place = |name: &str| if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") };
        let private = PRIVATE.iter().filter(|_| self.redaction.is_none());
        let wanted: Vec<_> = RESOURCES.iter().chain(private).collect();
        for (name, form) in wanted {
            let answer = match form {
                Form::One => process.one(name),
                Form::List => process.list(name).map(Value::from),
            };
            self.document(&place(&format!("{name}.json")), answer);
        }
        let metrics = process.metrics();
        self.text(&place("metrics.txt"), metrics);
    }

    /// Adds a document as it is, or the reason why it is missing.
    pub fn document(&mut self, path: &str, document: Result<Value>) {
        match document {
            Ok(document) => self.files.push((path.to_owned(), format!("{document:#}\n"))),
            Err(error) => self.failures.push(format!("{path}: {error:#}")),
        }
    }

    /// Adds a text without addresses of clients, or the reason why it is missing.
    pub fn text(&mut self, path: &str, text: Result<String>) {
        match text {
            Ok(text) => {
                let text = match &mut self.redaction {
                    Some(redaction) => redaction.addresses(&text),
                    None => text,
                };
                self.files.push((path.to_owned(), text));
            }
            Err(error) => self.failures.push(format!("{path}: {error:#}")),
        }
    }

    /// Adds a log without its access log, and without queries of URLs and addresses of clients.
    pub fn log(&mut self, path: &str, log: Result<String>) {
        self.text(path, log.map(|log| redaction::own_lines(&log)));
    }

    /// Returns `text` as [`Bundle::text`] would add it.
    #[must_use]
    pub fn redacted(&mut self, text: &str) -> String {
        self.redaction.as_mut().map_or_else(|| text.to_owned(), |redaction| redaction.addresses(text))
    }

    /// Writes the archive, with the missing parts in `missing.txt`. Returns its place, and the missing parts.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn write(mut self, file: Option<&Path>) -> Result<(PathBuf, Vec<String>)> {
        let missing = std::mem::take(&mut self.failures);
        if !missing.is_empty() {
            let list = missing.join("\n") + "\n";
            self.text("missing.txt", Ok(list));
        }
        let place = file.map_or_else(|| PathBuf::from(format!("{}.tar.gz", self.name)), Path::to_owned);
        let written = if place == Path::new("-") {
            self.archive(io::stdout().lock()).map(drop)
        } else {
            private_file(&place).and_then(|file| self.archive(file)).map(drop)
        };
        written.with_context(|| format!("cannot write `{}`", place.display()))?;
        Ok((place, missing))
    }

    fn archive<W: Write>(&self, out: W) -> io::Result<W> {
        let mut archive = tar::Builder::new(GzEncoder::new(out, Compression::default()));
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        for (path, text) in &self.files {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o600);
            header.set_mtime(now);
            archive.append_data(&mut header, format!("{}/{path}", self.name), text.as_bytes())?;
        }
        let mut out = archive.into_inner()?.finish()?;
        out.flush()?;
        Ok(out)
    }
}

/// Creates a file that only its owner can read, because a bundle describes a cluster.
fn private_file(path: &Path) -> io::Result<fs::File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests;
