//! `kubectl xdp-ingress logs`: the logs of all pods.

use anyhow::{Context as _, Result};
use futures_util::{AsyncBufReadExt as _, StreamExt as _, TryStreamExt as _, stream};
use kube::api::LogParams;

use super::{arguments::LogsArgs, fleet::Fleet, pods::ControllerPod};
use crate::print;

/// Prints logs, each line after the name of its node if there are several.
///
/// # Errors
/// Fails if there is no pod, or standard output cannot be written.
pub(super) fn run(fleet: &Fleet, args: &LogsArgs) -> Result<()> {
    let LogsArgs { follow, tail, since, previous, installation: _ } = args;
    let parameters = |pod: &ControllerPod| LogParams {
        container: Some(pod.container.clone()),
        follow: *follow,
        previous: *previous,
        // The API counts in seconds.
        since_seconds: since.and_then(|since| i64::try_from(since.as_secs()).ok()),
        tail_lines: tail.map(i64::from),
        ..LogParams::default()
    };
    let pods = fleet.pods()?;
    let prefix = |pod: &ControllerPod| if pods.len() > 1 { format!("[{}] ", pod.node) } else { String::new() };
    if *follow {
        return fleet.wait_for(async {
            let mut logs = Vec::new();
            for pod in &pods {
                let log = fleet.api().log_stream(&pod.name, &parameters(pod)).await;
                match log.with_context(|| cannot(pod)) {
                    Ok(log) => {
                        logs.push(log.lines().map_ok(move |line| format!("{}{line}\n", prefix(pod))).boxed_local())
                    }
                    Err(error) => fleet.tell(pod, &error),
                }
            }
            let mut lines = stream::select_all(logs);
            while let Some(line) = lines.next().await {
                print::text(&line.context("a log breaks off")?)?;
            }
            Ok(())
        });
    }
    for pod in &pods {
        match read(fleet, pod, &parameters(pod)) {
            Ok(log) => {
                let prefix = prefix(pod);
                print::text(&log.lines().map(|line| format!("{prefix}{line}\n")).collect::<String>())?;
            }
            Err(error) => fleet.tell(pod, &error),
        }
    }
    Ok(())
}

/// Returns the log of a pod.
///
/// # Errors
/// Fails if the API server does not give it.
pub(super) fn read(fleet: &Fleet, pod: &ControllerPod, parameters: &LogParams) -> Result<String> {
    fleet.wait_for(fleet.api().logs(&pod.name, parameters)).with_context(|| cannot(pod))
}

fn cannot(pod: &ControllerPod) -> String {
    format!("cannot read the log of container `{}`; you need the right to `get` pods/log", pod.container)
}
