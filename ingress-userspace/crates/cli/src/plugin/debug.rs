//! `kubectl xdp-ingress debug bundle`: an archive about all nodes for bug reports.

use std::{cell::RefCell, time::Duration};

use anyhow::{Result, anyhow};
use kube::api::LogParams;
use serde_json::{Value, json};

use super::{
    arguments::{DebugBundleArgs, DebugCommand},
    fleet::{Connection, Fleet, warn},
    logs,
    pods::ControllerPod,
};
use crate::{
    bundle::{Bundle, Resources},
    palette::Tone,
};

/// The API of a pod, for code that waits.
struct PodResources<'f> {
    fleet: &'f Fleet,
    connection: RefCell<Connection>,
    timeout: Duration,
}

impl PodResources<'_> {
    fn wait_for<T>(&self, work: impl AsyncFnOnce(&mut Connection) -> Result<T>) -> Result<T> {
        let mut connection = self.connection.borrow_mut();
        let timeout = self.timeout;
        self.fleet.wait_for(async {
            let answer = tokio::time::timeout(timeout, work(&mut connection)).await;
            answer.unwrap_or_else(|_late| Err(anyhow!("no answer within {timeout:?}; see `--timeout`")))
        })
    }
}

impl Resources for PodResources<'_> {
    fn one(&self, name: &str) -> Result<Value> {
        self.wait_for(async |connection| connection.one(name, &[]).await)
    }

    fn list(&self, name: &str) -> Result<Vec<Value>> {
        self.wait_for(async |connection| connection.list(name, &[]).await)
    }

    fn metrics(&self) -> Result<String> {
        self.wait_for(async |connection| connection.metrics().await)
    }
}

/// Collects and writes the archive.
///
/// # Errors
/// Fails if there is no pod, or the archive cannot be written.
pub(super) fn run(fleet: &Fleet, command: &DebugCommand) -> Result<()> {
    let DebugCommand::Bundle(DebugBundleArgs { bundle: wanted, tail, installation }) = command;
    let timeout = installation.cluster.timeout;
    let pods = fleet.pods()?;
    let mut bundle = Bundle::new(wanted.with_addresses);
    bundle.document("version.json", Ok(json!({ "client": env!("CARGO_PKG_VERSION") })));
    bundle.document("pods.json", Ok(serde_json::to_value(&pods)?));
    for pod in &pods {
        let directory = format!("nodes/{}", pod.node);
        match connect(fleet, pod, timeout) {
            Ok(process) => bundle.collect(&directory, &process),
            Err(error) => {
                fleet.tell(pod, &error);
                bundle.document(&directory, Err(error));
            }
        }
        for (name, previous) in [("log.txt", false), ("log-before.txt", true)] {
            // Only a container that was restarted has a log from before.
            if previous && pod.restarts == 0 {
                continue;
            }
            let container = Some(pod.container.clone());
            let parameters =
                LogParams { container, previous, tail_lines: Some(i64::from(*tail)), ..LogParams::default() };
            bundle.log(&format!("{directory}/{name}"), logs::read(fleet, pod, &parameters));
        }
    }
    let (place, missing) = bundle.write(wanted.file.as_deref())?;
    for missing in missing {
        warn(format_args!("missing: {missing}"), Tone::Warning);
    }
    eprintln!("wrote {}", place.display());
    Ok(())
}

fn connect<'f>(fleet: &'f Fleet, pod: &ControllerPod, timeout: Duration) -> Result<PodResources<'f>> {
    let connection = fleet.wait_for(async { tokio::time::timeout(timeout, Connection::to(fleet.api(), pod)).await });
    let connection =
        connection.unwrap_or_else(|_late| Err(anyhow!("no answer within {timeout:?}; see `--timeout`")))?;
    Ok(PodResources { fleet, connection: RefCell::new(connection), timeout })
}
