//! Fetches one Debian package through a private apt configuration that uses the mirror of the system's own.
//! It changes no system file and needs no root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use xtask_tools::process;

/// Debian's own keys, in the package `debian-archive-keyring`.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const UPDATE_LIMIT: Duration = Duration::from_secs(240);
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(900);

/// A private apt in a directory of its own.
#[derive(Debug)]
pub struct PrivateApt {
    dir: PathBuf,
    config: PathBuf,
}

impl PrivateApt {
    /// Prepares apt in `dir` to read `suite` from this machine's Debian mirror, and fetches the index.
    ///
    /// # Errors
    /// Fails if this is not Debian, its sources name no mirror, its keys are missing, or the mirror cannot be reached.
    pub fn open(dir: &Path, suite: &str) -> Result<Self> {
        if process::find_program("apt-get").is_none() {
            bail!("this machine has no `apt-get`");
        }
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let mirror = debian_mirror(&system_sources(), codename(&release))
            .context("the sources in `/etc/apt` name no mirror of Debian")?;
        if !Path::new(KEYRING).exists() {
            bail!("Debian's keys are missing; run `apt-get install debian-archive-keyring`");
        }
        let private = Self { dir: dir.to_owned(), config: dir.join("apt.conf") };
        for part in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(dir.join(part))?;
        }
        fs::write(dir.join("sources.list"), format!("deb [signed-by={KEYRING}] {mirror} {suite} main\n"))?;
        fs::write(&private.config, private_config(dir))?;
        let mut update = private.apt("apt-get");
        // Without this, an unreachable mirror is only a warning, and the failure comes later and without its reason.
        update.args(["-q", "-o", "APT::Update::Error-Mode=any", "update"]);
        process::run_shown(&format!("reading the index of Debian {suite}"), &mut update, UPDATE_LIMIT)?;
        Ok(private)
    }

    /// Returns the available versions of `package`, newest first.
    ///
    /// # Errors
    /// Fails if apt fails.
    pub fn versions(&self, package: &str) -> Result<Vec<String>> {
        Ok(parse_madison(&process::capture(self.apt("apt-cache").args(["madison", package]))?))
    }

    /// Returns the names of the packages that `package` depends on; of alternatives only the last.
    ///
    /// # Errors
    /// Fails if apt fails.
    pub fn dependencies(&self, package: &str) -> Result<Vec<String>> {
        Ok(parse_depends(&process::capture(self.apt("apt-cache").args(["depends", "--important", package]))?))
    }

    /// Downloads `package` in exactly `version` and returns the file's path. apt checks the file against the signed
    /// index.
    ///
    /// # Errors
    /// Fails if the download fails.
    pub fn download(&self, package: &str, version: &str) -> Result<PathBuf> {
        let mut download = self.apt("apt-get");
        download.args(["-q", "download", &format!("{package}={version}")]).current_dir(&self.dir);
        process::run_shown(&format!("downloading Debian's {package} {version}"), &mut download, DOWNLOAD_LIMIT)?;
        // `package_version_architecture.deb`; other packages may be in the same directory.
        let start = format!("{package}_");
        let is_package = |path: &PathBuf| {
            path.extension().is_some_and(|extension| extension == "deb")
                && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&start))
        };
        let mut files = fs::read_dir(&self.dir)?.filter_map(|entry| entry.ok().map(|entry| entry.path()));
        files.find(is_package).with_context(|| format!("apt-get left no file for `{package}`"))
    }

    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("-c").arg(&self.config).env("LC_ALL", "C");
        command
    }
}

/// Returns the texts of the system's apt sources, each with its format.
fn system_sources() -> Vec<(Format, String)> {
    let parts = fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten();
    let mut paths: Vec<_> = parts.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    paths.push(PathBuf::from("/etc/apt/sources.list"));
    paths.sort();
    let read = |path: &PathBuf| {
        let format = match path.extension()?.to_str()? {
            "list" => Format::OneLine,
            "sources" => Format::Deb822,
            _ => return None,
        };
        Some((format, fs::read_to_string(path).ok()?))
    };
    paths.iter().filter_map(read).collect()
}

fn private_config(dir: &Path) -> String {
    let dir = dir.display();
    // Container images add hooks to apt's configuration that delete files of the system's cache.
    format!(
        r#"Dir::Etc::sourcelist "{dir}/sources.list";
Dir::Etc::sourceparts "-";
Dir::State::lists "{dir}/lists";
Dir::Cache "{dir}/cache";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Retries "3";
Acquire::http::Timeout "30";
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
"#
    )
}

/// Format of a file of apt sources (sources.list(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    OneLine,
    Deb822,
}

#[derive(Debug, PartialEq, Eq)]
struct Source {
    uris: Vec<String>,
    suites: Vec<String>,
    components: Vec<String>,
}

/// Returns the mirror of Debian itself: the source of the running release, else any with a path that ends in `/debian`.
fn debian_mirror(sources: &[(Format, String)], codename: Option<&str>) -> Option<String> {
    let sources: Vec<Source> = sources.iter().flat_map(|(format, text)| parse_sources(*format, text)).collect();
    let of_release = |source: &&Source| source.suites.iter().any(|suite| Some(suite.as_str()) == codename);
    let is_debian = |uri: &&String| uri.trim_end_matches('/').ends_with("/debian");
    let has_main = |source: &&Source| source.components.iter().any(|component| component == "main");
    let candidates = || sources.iter().filter(has_main);
    candidates()
        .filter(of_release)
        .chain(candidates())
        .flat_map(|source| &source.uris)
        .find(is_debian)
        .or_else(|| candidates().filter(of_release).flat_map(|source| &source.uris).next())
        .cloned()
}

fn parse_sources(format: Format, text: &str) -> Vec<Source> {
    match format {
        Format::OneLine => text.lines().filter_map(parse_line).collect(),
        Format::Deb822 => stanzas(text).iter().filter_map(|stanza| parse_stanza(stanza)).collect(),
    }
}

/// Parses `deb [ options ] uri suite component…`.
fn parse_line(line: &str) -> Option<Source> {
    let rest = line.split('#').next()?.trim().strip_prefix("deb")?;
    let rest = rest.strip_prefix(char::is_whitespace)?.trim_start();
    let rest = match rest.strip_prefix('[') {
        Some(options) => options.split_once(']')?.1,
        None => rest,
    };
    let mut words = rest.split_whitespace().map(str::to_owned);
    Some(Source { uris: vec![words.next()?], suites: vec![words.next()?], components: words.collect() })
}

fn stanzas(text: &str) -> Vec<String> {
    let mut stanzas = vec![String::new()];
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        match stanzas.last_mut() {
            Some(last) if !line.trim().is_empty() => {
                // A line that begins with a blank continues the field before it.
                last.push_str(if line.starts_with([' ', '\t']) { " " } else { "\n" });
                last.push_str(line.trim());
            }
            _ => stanzas.push(String::new()),
        }
    }
    stanzas
}

fn parse_stanza(stanza: &str) -> Option<Source> {
    let field = |name: &str| -> Option<Vec<String>> {
        stanza.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.split_whitespace().map(str::to_owned).collect())
        })
    };
    if field("Enabled").is_some_and(|value| value == ["no"]) || !field("Types")?.iter().any(|kind| kind == "deb") {
        return None;
    }
    Some(Source { uris: field("URIs")?, suites: field("Suites")?, components: field("Components")? })
}

fn codename(os_release: &str) -> Option<&str> {
    os_release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")).map(|name| name.trim_matches('"'))
}

fn parse_madison(output: &str) -> Vec<String> {
    output.lines().filter_map(|line| line.split('|').nth(1)).map(|version| version.trim().to_owned()).collect()
}

/// Parses lines `  Depends: NAME`. A bar before the word marks an alternative to the next line, and a name in angle
/// brackets is a virtual package.
fn parse_depends(output: &str) -> Vec<String> {
    let names = output.lines().filter_map(|line| line.trim_start().strip_prefix("Depends: "));
    names.filter(|name| !name.starts_with('<')).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEB822: &str = "Types: deb\n# a comment\nURIs: http://mirror.example/debian\nSuites: bookworm\n bookworm-updates\n\
        Components: main\nSigned-By: /k.gpg\n\nTypes: deb\nURIs: http://mirror.example/debian-security\n\
        Suites: bookworm-security\nComponents: main\n";

    #[test]
    fn the_mirror_is_that_of_the_running_release() {
        let check = |sources: &[(Format, &str)], codename: Option<&str>, expect: Option<&str>| {
            let sources: Vec<_> = sources.iter().map(|(format, text)| (*format, (*text).to_owned())).collect();
            assert_eq!(debian_mirror(&sources, codename).as_deref(), expect, "{sources:?}");
        };
        let one_line = "deb [arch=amd64 signed-by=/k] http://a.example/debian/ trixie main contrib # own mirror\n";
        let vendor = "deb http://vendor.example/debian stable nonfree\n";
        check(&[(Format::Deb822, DEB822)], Some("bookworm"), Some("http://mirror.example/debian"));
        check(
            &[(Format::OneLine, vendor), (Format::OneLine, one_line)],
            Some("trixie"),
            Some("http://a.example/debian/"),
        );
        check(&[(Format::OneLine, vendor), (Format::Deb822, DEB822)], None, Some("http://mirror.example/debian"));
        // A mirror may have any path if it serves the running release.
        check(&[(Format::OneLine, "deb http://b.example/d trixie main")], Some("trixie"), Some("http://b.example/d"));
        check(&[(Format::OneLine, "#deb http://a.example/debian trixie main")], Some("trixie"), None);
        check(&[(Format::OneLine, "deb-src http://a.example/debian trixie main")], Some("trixie"), None);
        check(
            &[(Format::Deb822, "Enabled: no\nTypes: deb\nURIs: http://a/debian\nSuites: x\nComponents: main")],
            None,
            None,
        );
        check(&[], Some("trixie"), None);
    }

    #[test]
    fn continuation_lines_belong_to_their_field() {
        let sources = parse_sources(Format::Deb822, DEB822);
        assert_eq!(sources.len(), 2);
        assert_eq!(sources[0].suites, ["bookworm", "bookworm-updates"]);
    }

    #[test]
    fn madison_lists_versions_in_its_order() {
        let output =
            "  rust-src | 1.96.1+dfsg1-2~bpo13+1 | http://m t/main amd64 Packages\n  rust-src | 1.95.0+x | http://m";
        assert_eq!(parse_madison(output), ["1.96.1+dfsg1-2~bpo13+1", "1.95.0+x"]);
        assert!(parse_madison("").is_empty());
    }

    #[test]
    fn only_mandatory_dependencies_are_listed() {
        let output = "linux-image-7\n  PreDepends: linux-base\n |Depends: dracut\n  Depends: <linux-initramfs-tool>\n\
            \x20   dracut\n  Depends: linux-modules-7\n";
        assert_eq!(parse_depends(output), ["linux-modules-7"]);
    }

    #[test]
    fn codename_is_read_with_and_without_quotes() {
        assert_eq!(codename("ID=debian\nVERSION_CODENAME=bookworm\n"), Some("bookworm"));
        assert_eq!(codename("VERSION_CODENAME=\"trixie\""), Some("trixie"));
        assert_eq!(codename("ID=debian"), None);
    }
}
