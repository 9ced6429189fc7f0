//! Errors between this process and the kernel, with advice for the operator.

use std::{fmt, io, path::PathBuf};

/// An error of the datapath. `Display` shows this layer only; the cause is in `source`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This machine cannot run the datapath at all; nothing was changed.
    #[error("the datapath cannot run here: {}", list(.0))]
    Unsupported(Vec<Missing>),
    #[error(
        "pinned map `{}` has another layout ({found}; this version needs {expected}); use the version of xdp-ingress \
         that created it, or remove all pins and their counters with `xdp-ingress unload`",
        path.display()
    )]
    Layout { path: PathBuf, found: String, expected: String },
    #[error(
        "nothing of xdp-ingress is pinned below `{}`; start `xdp-ingress run` with its kernel part on this node, or \
         name the directory that it uses with `--bpffs` (inside the pod that is `/bpf/xdp-ingress`)",
        .0.display()
    )]
    NothingPinned(PathBuf),
    #[error(
        "this user may not read the maps pinned below `{}`; run as the user of xdp-ingress, which is root, and before \
         Linux 5.19 with CAP_BPF",
        path.display()
    )]
    Forbidden {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "link `{}` belongs to another network namespace; run `xdp-ingress unload` first, or use another `--bpffs`",
        path.display()
    )]
    ForeignNamespace { path: PathBuf },
    #[error(
        "interface `{interface}` has an XDP program of another application; run with `--xdp-mode auto` or `tcx`, \
         which leave it there, or detach that program (`bpftool net` shows it; a program without a link is detached by \
         `ip link set dev {interface} xdp off`)"
    )]
    Busy { interface: String },
    #[error("this network namespace has no interface `{0}`; `ip link` lists the existing ones")]
    NoInterface(String),
    #[error(
        "the version of xdp-ingress that runs on this node takes all clients and has no share to set; update it first"
    )]
    NoShare,
    #[error(
        "a process on this node lays out connection IDs of QUIC by version {found} (this process by {expected}); HTTP/3 is \
         off here until that process has ended and `xdp-ingress unload` has removed its maps"
    )]
    QuicVersion { found: u32, expected: u32 },
    #[error("cannot {operation} `{object}`")]
    Kernel {
        operation: &'static str,
        object: String,
        #[source]
        source: io::Error,
    },
    #[error("cannot create the maps and programs from the embedded object")]
    Object(#[source] Box<aya::EbpfError>),
    #[error("the kernel refuses the program `{program}`")]
    Program {
        program: &'static str,
        #[source]
        source: Box<aya::programs::ProgramError>,
    },
    #[error(
        "the process reached its limit of locked memory, which includes maps and programs before Linux 5.11; give it \
         `CAP_SYS_RESOURCE` to raise the limit itself, or raise the limit (`ulimit -l unlimited`, for a unit of \
         systemd `LimitMEMLOCK=infinity`)"
    )]
    LockedMemory,
    #[error("slot {slot} is beyond the limit of {max} listeners")]
    Slot { slot: u32, max: u32 },
    #[error("{count} {what} exceed the limit of {max}; configure fewer of them")]
    TooMany { what: &'static str, count: usize, max: u32 },
    #[error("all {capacity} host ids are taken; raise `--host-capacity` after `xdp-ingress unload`")]
    HostsFull { capacity: u32 },
    #[error("host name `{0}` is longer than 255 bytes")]
    HostName(String),
}

/// A requirement of the datapath that this machine or process does not meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The binary was built without the kernel programs.
    Programs,
    /// A Linux capability of this process.
    Capability(&'static str),
    /// The kernel is older than the programs require.
    Kernel { running: String, needed: &'static str },
    /// The kernel is older than `--steer rewrite` requires.
    Rewriting { running: String, needed: &'static str },
    /// The kernel does not support programs of this type, or forbids them.
    ProgramType(&'static str),
    /// The kernel does not accept BTF, which the map definitions require. The kernel's own BTF, `/sys/kernel/btf`, is
    /// not used.
    Btf,
    /// No BPF file system is mounted at the location of the pins.
    Bpffs(PathBuf),
}

impl Error {
    pub(super) fn kernel(operation: &'static str, object: impl Into<String>, source: io::Error) -> Self {
        Self::Kernel { operation, object: object.into(), source }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Programs => f.write_str("this binary has no kernel programs; build it with `cargo xtask build`"),
            Self::Capability(name) => write!(
                f,
                "the process lacks `{name}`; run it as root, or give it that capability (a container by \
                 `securityContext.capabilities.add`)"
            ),
            Self::Kernel { running, needed } => {
                write!(f, "kernel `{running}` is too old; `{needed}` or later is needed")
            }
            Self::Rewriting { running, needed } => write!(
                f,
                "kernel `{running}` is too old for `--steer rewrite`; use `{needed}` or later, or `--steer auto`"
            ),
            Self::ProgramType(name) => write!(
                f,
                "the kernel does not load `{name}` programs; let the process use bpf(2) (seccomp, SELinux, AppArmor), \
                 or use a kernel with `CONFIG_BPF_SYSCALL`"
            ),
            Self::Btf => f.write_str(
                "the kernel accepts no BTF from the process; let it use bpf(2) (seccomp, SELinux, AppArmor), or use a \
                 kernel with `CONFIG_BPF_SYSCALL`",
            ),
            Self::Bpffs(path) => write!(
                f,
                "no BPF file system is mounted at `{0}`; mount one with `mkdir -p {0} && mount -t bpf bpf {0}` (for a \
                 pod, on the node: `mount -t bpf bpf /sys/fs/bpf`)",
                path.display()
            ),
        }
    }
}

fn list(missing: &[Missing]) -> String {
    missing.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel;

    #[test]
    fn error_messages_match_the_documentation() {
        const DOCS: &str = include_str!("../../../../docs/lifecycle.md");
        let missing = [
            Missing::Capability("CAP_BPF"),
            Missing::Kernel { running: "4.19.0-27-amd64".to_owned(), needed: kernel::OLDEST_TEXT },
            Missing::Rewriting { running: "5.10.0-32-amd64".to_owned(), needed: kernel::FULL_TEXT },
            Missing::ProgramType("xdp"),
            Missing::Btf,
            Missing::Bpffs("/sys/fs/bpf".into()),
        ];
        let errors = [
            Error::Layout {
                path: "/sys/fs/bpf/xdp-ingress/v1/maps/ports".into(),
                found: "4 → 24 bytes".to_owned(),
                expected: "4 → 16 bytes".to_owned(),
            },
            Error::Busy { interface: "eth0".to_owned() },
            Error::NothingPinned("/sys/fs/bpf/xdp-ingress".into()),
            Error::LockedMemory,
        ];
        let said = missing.iter().map(ToString::to_string).chain(errors.iter().map(ToString::to_string));
        for said in said {
            assert!(DOCS.contains(&said), "docs/lifecycle.md does not say: {said}");
        }
    }
}
