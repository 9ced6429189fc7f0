//! Pushes the repositories of a release to their registry, by skopeo. Digests stay as they are, and are compared
//! afterwards.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use xtask_image::oci::Blob;
use xtask_tools::process;

use super::registry::Registry;
use super::repository::Repository;

const LIMIT: Duration = Duration::from_secs(900);

/// How a registry is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// HTTPS with a certificate that this machine trusts.
    Https,
    /// Plain HTTP.
    Http,
}

/// Pushes every tag of `repository`, whose layout is in `dir`, to the repository `name` of `registry`. Credentials are
/// those of `skopeo login` or `docker login`.
///
/// # Errors
/// Fails if skopeo is missing and cannot be installed, the registry refuses a push, or it has another digest afterwards.
pub(crate) fn push(
    repository: &Repository,
    dir: &Path,
    registry: &Registry,
    name: &str,
    transport: Transport,
) -> Result<()> {
    xtask_setup::packages(&["skopeo"], "release")?;
    let to = format!("docker://{}", registry.repository(name));
    let verify = transport == Transport::Https;
    for tag in repository.tags() {
        let mut copy = skopeo("copy");
        copy.args(["--all", "--preserve-digests", &format!("--dest-tls-verify={verify}")]);
        copy.arg(format!("oci:{}:{tag}", dir.display())).arg(format!("{to}:{tag}"));
        process::run_shown(&format!("pushing {name}:{tag}"), &mut copy, LIMIT)?;
        let mut inspect = skopeo("inspect");
        inspect.args(["--raw", &format!("--tls-verify={verify}"), &format!("{to}:{tag}")]);
        let found = Blob::new("", process::capture(&mut inspect)?.into_bytes()).digest();
        let pushed = repository.digest(tag).context("a tag has a digest")?;
        ensure!(found == pushed, "the registry has `{found}` as {name}:{tag}, and not `{pushed}`");
    }
    Ok(())
}

/// Returns a command of skopeo. The policy of this machine is about images from elsewhere.
fn skopeo(command: &str) -> Command {
    let mut skopeo = Command::new("skopeo");
    skopeo.args(["--insecure-policy", command]);
    skopeo
}
