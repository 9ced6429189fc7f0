//! `xdp-ingress debug bundle`: writes an archive for bug reports, from a running process and the pinned maps of its node.
//! Changes nothing on the node.

use ingress_cli::{bundle::Bundle, configuration::NodeClient};
use ingress_datapath::Pinned;
use serde_json::{Value, json};

use super::{
    arguments::{DebugBundleArgs, DebugCommand, PinArgs},
    status::NodeState,
};

/// Collects and writes the archive.
///
/// # Errors
/// Fails if neither a process nor pins are there, or the archive cannot be written.
pub(crate) fn run(DebugCommand::Bundle(args): DebugCommand) -> anyhow::Result<()> {
    let DebugBundleArgs { bundle: wanted, socket, timeout, pins: PinArgs { bpffs } } = args;
    let (has_process, has_pins) = (NodeClient::is_there(&socket), bpffs.is_dir());
    anyhow::ensure!(
        has_process || has_pins,
        "there is neither a process at `{}` nor anything pinned below `{}`; run the command inside a pod, or on the node \
         as root",
        socket.display(),
        bpffs.display()
    );
    let mut bundle = Bundle::new(wanted.with_addresses);
    bundle.document("version.json", Ok(json!({ "client": env!("CARGO_PKG_VERSION") })));
    if has_pins {
        let state = Pinned::open(&bpffs).and_then(|pinned| NodeState::read(&bpffs, &pinned));
        let document = state.map(|state| {
            let mut document = state.json();
            // Other texts of the state name nobody.
            if let Some(Value::Array(sentences)) = document.get_mut("attention") {
                for sentence in sentences {
                    *sentence = bundle.redacted(sentence.as_str().unwrap_or_default()).into();
                }
            }
            document
        });
        bundle.document("status.json", document.map_err(Into::into));
    }
    if has_process {
        bundle.collect("", &NodeClient::new(socket, timeout));
    }
    let (place, missing) = bundle.write(wanted.file.as_deref())?;
    for missing in missing {
        eprintln!("missing: {missing}");
    }
    eprintln!("wrote {}", place.display());
    Ok(())
}
