//! Copies the programs of a cluster into one directory, for machines that lack this cache. It fetches none.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{Binaries, PAUSE};

/// The shim, which containerd expects beside itself.
const SHIM: &str = "containerd-shim-runc-v2";

/// Copies the programs into `dir/bin`, the CNI plugins into `dir/cni`, and the pause image to `dir/pause.tar`, with its
/// name in `dir/pause.name`. Files there are overwritten.
///
/// # Errors
/// Fails if a file cannot be read or written.
pub fn export(binaries: &Binaries, dir: &Path) -> Result<()> {
    let (bin, cni) = (dir.join("bin"), dir.join("cni"));
    for made in [&bin, &cni] {
        fs::create_dir_all(made).with_context(|| format!("cannot make `{}`", made.display()))?;
    }
    let Binaries { containerd, cni: plugins, pause, .. } = binaries;
    for program in binaries.programs().map(|(_, path)| path).into_iter().chain([&*containerd.with_file_name(SHIM)]) {
        copy_into(&bin, program)?;
    }
    for plugin in files(plugins)? {
        copy_into(&cni, &plugin)?;
    }
    copy(pause, &dir.join("pause.tar"))?;
    fs::write(dir.join("pause.name"), PAUSE).context("cannot write the name of the pause image")
}

/// Returns the files in `dir`, and what its symbolic links lead to.
fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot list `{}`", dir.display()))?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    Ok(paths.into_iter().filter(|path| path.is_file()).collect())
}

fn copy_into(dir: &Path, file: &Path) -> Result<()> {
    let name = file.file_name().with_context(|| format!("`{}` has no name", file.display()))?;
    copy(file, &dir.join(name))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let copied = fs::copy(from, to).map(drop);
    copied.with_context(|| format!("cannot copy `{}` to `{}`", from.display(), to.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn exported_programs_have_their_usual_names_and_are_executable() {
        let dir = tempfile::tempdir().unwrap();
        let program = |name: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, name).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        program("from/usr/bin/containerd-shim-runc-v2");
        program("from/cni/bridge");
        let binaries = Binaries {
            etcd: program("from/etcd"),
            kube_apiserver: program("from/kube-apiserver"),
            kube_controller_manager: program("from/kube-controller-manager"),
            kube_scheduler: program("from/kube-scheduler"),
            kubelet: program("from/kubelet"),
            kube_proxy: program("from/kube-proxy"),
            kubectl: program("from/kubectl"),
            containerd: program("from/usr/bin/containerd"),
            ctr: program("from/usr/bin/ctr"),
            runc: program("from/usr/sbin/runc"),
            cni: dir.path().join("from/cni"),
            pause: program("from/pause-image.tar"),
        };
        let to = dir.path().join("to");
        export(&binaries, &to).unwrap();
        for name in ["bin/kubelet", "bin/containerd-shim-runc-v2", "bin/runc", "cni/bridge"] {
            let mode = fs::metadata(to.join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o111, 0o111, "{name}");
        }
        assert_eq!(fs::read_to_string(to.join("pause.tar")).unwrap(), "from/pause-image.tar");
        assert_eq!(fs::read_to_string(to.join("pause.name")).unwrap(), PAUSE);
    }
}
