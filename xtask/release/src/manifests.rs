//! The manifests in one file, for `kubectl apply -f`: `deploy/base` with the image of the release. It renders nothing
//! itself.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use xtask_setup::Packagers;
use xtask_tools::{process, workspace};

use super::text::replace_once;

/// Name of the file.
pub(crate) const FILE: &str = "install.yaml";

/// Returns the file. `image` is the full name with a digest.
///
/// # Errors
/// Fails if kustomize fails, or the manifests have another image than that of this version.
pub(crate) fn render(tools: &Packagers, image: &str) -> Result<String> {
    let mut build = Command::new(&tools.kustomize);
    build.arg("build").arg(workspace::root().join("deploy/base"));
    with_image(&process::capture(&mut build)?, image).context("in what kustomize makes of `deploy/base`")
}

fn with_image(manifests: &str, image: &str) -> Result<String> {
    let of_sources = concat!("image: localhost/xdp-ingress:", env!("CARGO_PKG_VERSION"), "\n");
    let text = replace_once(manifests, of_sources, &format!("image: {image}\n"))?;
    ensure!(!text.contains("localhost/"), "an image of `localhost` is left");
    let version = env!("CARGO_PKG_VERSION");
    Ok(format!("# xdp-ingress {version}: kubectl apply -f {FILE}\n{}\n", text.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_of_the_release_replaces_that_of_the_sources() {
        let version = env!("CARGO_PKG_VERSION");
        let manifests = format!("spec:\n  image: localhost/xdp-ingress:{version}\n  x: y");
        let made = with_image(&manifests, "r/x@sha256:00").unwrap();
        assert_eq!(
            made,
            format!("# xdp-ingress {version}: kubectl apply -f install.yaml\nspec:\n  image: r/x@sha256:00\n  x: y\n")
        );
        for wrong in ["spec: {}".to_owned(), format!("{manifests}\n  image: localhost/echo-server:{version}\n")] {
            assert!(with_image(&wrong, "r/x").is_err(), "{wrong}");
        }
    }
}
