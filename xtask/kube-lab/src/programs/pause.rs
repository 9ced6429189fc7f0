//! The image of the container that holds a pod's namespaces, made from one static program. It makes no other image;
//! [`xtask_image::oci`] writes it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use xtask_image::oci::{File, Image};
use xtask_setup::cache::Cache;
use xtask_tools::{process, workspace};

/// The image's name. It is in no registry: the image is imported into every node.
pub(super) const NAME: &str = "xdp-ingress.local/pause:1";
const SOURCE: &str = include_str!("../../kubernetes/pause.rs");
const FILE: &str = "pause.tar";
const LIMIT: Duration = Duration::from_secs(300);

/// Returns the path of the image archive in the cache; the file may not exist yet.
///
/// # Errors
/// Fails if there is no cache directory.
pub(super) fn place() -> Result<PathBuf> {
    Ok(workspace::cache_dir()?.join(dir_name()).join(FILE))
}

/// Returns `true` if the archive is in the cache.
///
/// # Errors
/// Fails if there is no cache directory.
pub(super) fn is_there() -> Result<bool> {
    Ok(place()?.is_file())
}

/// Compiles the program and packs it into an image.
///
/// # Errors
/// Fails if the compiler cannot build a static program here.
pub(super) fn install(cache: &Cache) -> Result<()> {
    cache.install(&dir_name(), |staging| {
        let (source, program) = (staging.join("pause.rs"), staging.join("pause"));
        fs::write(&source, SOURCE)?;
        let mut rustc = Command::new("rustc");
        rustc.args(["--edition", "2024", "-C", "opt-level=s", "-C", "panic=abort", "-C", "strip=symbols"]);
        rustc.args(["-C", "target-feature=+crt-static", "-o"]).arg(&program).arg(&source);
        process::run_shown("compiling the pause program", &mut rustc, LIMIT)
            .context("cannot compile a static program; Debian's package `libc6-dev` holds the static C library")?;
        let content = fs::read(&program).context("cannot read the pause program")?;
        let pause = File { path: "/pause".to_owned(), mode: 0o755, content };
        let image = Image {
            name: NAME.to_owned(),
            entrypoint: vec![pause.path.clone()],
            files: vec![pause],
            ..Image::default()
        };
        image.write(&staging.join(FILE)).map(drop)
    })?;
    Ok(())
}

fn dir_name() -> String {
    let hash: String = Sha256::digest(SOURCE).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("pause-{hash:.12}")
}
