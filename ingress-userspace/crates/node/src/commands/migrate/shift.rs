//! `xdp-ingress migrate shift`: sets the share of the clients whose new connections this node takes, through the pinned
//! map. No process is contacted.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail};
use ingress_cli::print::{self, OutputArgs};
use ingress_common::{PortKey, PortRule, flow::PROTO_TCP, steer::PORT_COUNT_ONLY};
use ingress_control::{
    KubernetesConfig,
    node_right::{NodeRight, Right},
};
use ingress_datapath::{AppliedShare, ClientShare, NodeShare, Pinned, Renewal, Role};
use serde_json::{Value, json};

use super::{
    arguments::ShiftArgs,
    listeners,
    watch::{Sources, watch},
};
use crate::commands::arguments::PinArgs;

/// Where a pod finds its API server.
const IN_CLUSTER: &str = "KUBERNETES_SERVICE_HOST";

/// The name of the host, which a pod in its network shares.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

/// Sets or shows the share.
///
/// # Errors
/// Fails if nothing is pinned, if the pins cannot be changed, if the ports cannot be shared, if you may not set the
/// share, or if standard output cannot be written. The share is unchanged then.
pub(super) fn run(args: ShiftArgs) -> anyhow::Result<()> {
    let ShiftArgs {
        share,
        abort_on,
        metrics,
        other_metrics,
        lasts,
        no_listener_check,
        kubeconfig,
        context,
        node,
        pins: PinArgs { bpffs },
        output,
    } = args;
    if other_metrics.is_none() && abort_on.is_some_and(|conditions| conditions.compares()) {
        bail!(
            "`p99>…x` compares with the other controller: name its metrics with `--other-metrics`, as \
             `http://127.0.0.1:10254/metrics` for ingress-nginx with `--enable-metrics`, or give a time as `p99>500ms`"
        );
    }
    let sources = Sources { own: metrics, other: other_metrics };
    let node_share = NodeShare::open(&bpffs)?;
    if let Some(share) = share {
        let ports = shared_ports(&node_share.maps().ports()?)?;
        // A watched share may go back by itself.
        let may_leave = share != ClientShare::ALL || abort_on.is_some();
        if may_leave && !no_listener_check {
            check_listeners(&ports, &listeners::ports()?)?;
        }
        let cluster = ClusterAccess::of(kubeconfig, context, node)?;
        if share != ClientShare::NONE
            && let Some(cluster) = &cluster
        {
            cluster.check()?;
        }
        warn(&bpffs, share)?;
        let before = node_share.get().effective();
        let Some((conditions, lasts)) = abort_on.zip(lasts) else {
            node_share.set(share, Renewal::Process);
            record(cluster.as_ref(), before, share);
            return show(&node_share, &output);
        };
        if share == ClientShare::NONE {
            bail!("a share of 0 needs no watch; leave out `--abort-on` and `--for`");
        }
        record(cluster.as_ref(), before, share);
        let watched = block_on(watch(&node_share, share, conditions, &sources, lasts));
        if watched.is_err() {
            record(cluster.as_ref(), share, node_share.get().effective());
        }
        watched?;
    }
    show(&node_share, &output)
}

fn show(node_share: &NodeShare, output: &OutputArgs) -> anyhow::Result<()> {
    print::show(output, || Ok(node_share.get()), |share, style| style.render(&json(share), || text(share))).map(drop)
}

/// Writes an event where the cluster is known.
fn record(cluster: Option<&ClusterAccess>, before: ClientShare, share: ClientShare) {
    if let Some(cluster) = cluster {
        cluster.record(before, share);
    }
}

/// Returns the ports whose clients can be shared.
///
/// # Errors
/// Fails if there are none, or if the ports of packets are rewritten.
fn shared_ports(ports: &[(PortKey, PortRule)]) -> anyhow::Result<BTreeSet<u16>> {
    if ports.iter().any(|(_, rule)| rule.rewrite_be != 0) {
        bail!(
            "`--steer rewrite` gives every packet of a port to xdp-ingress, so a port has no share of clients; move the \
             other controller from `hostPort` to the network of the host, and run with `--steer auto`"
        );
    }
    let steers = |rule: &PortRule| rule.workers > 0 && rule.flags & PORT_COUNT_ONLY == 0;
    let shared = ports.iter().filter(|(key, rule)| key.proto == PROTO_TCP && steers(rule));
    let shared: BTreeSet<u16> = shared.map(|(key, _)| u16::from_be(key.port_be)).collect();
    if shared.is_empty() {
        bail!("no port is steered on this node: `xdp-ingress run` has not served yet, or runs with `--steer bind`");
    }
    Ok(shared)
}

/// Checks that clients that are left reach a listener.
fn check_listeners(shared: &BTreeSet<u16>, listening: &BTreeSet<u16>) -> anyhow::Result<()> {
    let without: Vec<String> = shared.difference(listening).map(ToString::to_string).collect();
    if without.is_empty() {
        return Ok(());
    }
    bail!(
        "no other process of this network namespace listens on port {}, so the clients left to it would be refused; start \
         the other controller, or add `--no-listener-check`",
        without.join(", ")
    )
}

/// Warns if no process serves the clients that were just taken.
fn warn(bpffs: &Path, share: ClientShare) -> anyhow::Result<()> {
    if share == ClientShare::NONE {
        return Ok(());
    }
    let processes = Pinned::open(bpffs)?.processes()?;
    let serves = processes.iter().any(|process| process.role != Role::Draining && process.lives != Some(false));
    if !serves {
        eprintln!(
            "no process of xdp-ingress lives on this node; until one serves, all clients reach the other listener"
        );
    }
    Ok(())
}

fn text(applied: &AppliedShare) -> String {
    let AppliedShare { share, is_set, renewal, lasts } = applied;
    let ends = match (is_set, lasts, renewal) {
        (false, _, _) => "no share was set on this node".to_owned(),
        (_, None, _) => "until it is changed, or the node starts again".to_owned(),
        (_, Some(Duration::ZERO), _) => format!("the share of {share} was not renewed and has ended"),
        (_, Some(left), Renewal::Process) => {
            format!("renewed by the running process, else ends in {} s", left.as_secs())
        }
        (_, Some(left), Renewal::Caller) => format!("renewed by its watcher, else ends in {} s", left.as_secs()),
    };
    format!("{} of the clients come to xdp-ingress ({ends})\n", applied.effective())
}

fn json(applied: &AppliedShare) -> Value {
    let AppliedShare { share, is_set, renewal, lasts } = applied;
    let percent = |share: ClientShare| (share.fraction() * 1_000_000.0).round() / 10_000.0;
    let renewal = match renewal {
        _ if lasts.is_none() => None,
        Renewal::Process => Some("process"),
        Renewal::Caller => Some("watcher"),
    };
    json!({
        "percent": percent(applied.effective()), "set_percent": is_set.then(|| percent(*share)), "renewed_by": renewal,
        "seconds_left": lasts.map(|lasts| lasts.as_secs()),
    })
}

/// The cluster that knows the rights of the caller and keeps events.
struct ClusterAccess {
    config: KubernetesConfig,
    node: String,
}

impl ClusterAccess {
    /// Returns the access that the options or the pod give; `None` outside of a cluster.
    fn of(kubeconfig: Option<PathBuf>, context: Option<String>, node: Option<String>) -> anyhow::Result<Option<Self>> {
        if kubeconfig.is_none() && std::env::var_os(IN_CLUSTER).is_none() {
            return Ok(None);
        }
        let node = match node {
            Some(node) => node,
            None => std::fs::read_to_string(HOST_NAME)
                .map(|name| name.trim().to_owned())
                .context("cannot read the name of this host; name the node with `--node`")?,
        };
        let config = KubernetesConfig { kubeconfig, context, namespace: None, namespace_selector: None };
        Ok(Some(Self { config, node }))
    }

    /// Fails unless the caller has the right.
    fn check(&self) -> anyhow::Result<()> {
        let right = block_on(async { anyhow::Ok(NodeRight::connect(&self.config).await?.check(&self.node).await?) });
        match right.context("cannot check your right to set a share; `shift 0` needs none")? {
            Right::Granted => Ok(()),
            Right::Missing => bail!(
                "you may not set the share of node `{}`; ask for the right to `update` `shifts` of the API group \
                 `xdp-ingress.io` (docs/rbac.md). `shift 0` needs no right",
                self.node
            ),
        }
    }

    /// Writes an event about the node. A failure is told, and does not change the share.
    fn record(&self, before: ClientShare, share: ClientShare) {
        let note = format!("xdp-ingress takes {share} of the clients of this node, {before} before");
        let written =
            block_on(async { anyhow::Ok(NodeRight::connect(&self.config).await?.record(&self.node, &note).await?) });
        if let Err(error) = written {
            eprintln!("the share is set, but its event is not written: {error:#}");
        }
    }
}

fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start a runtime")?.block_on(future)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::{
        commands::migrate::arguments::MigrateCommand,
        config::cli::{Cli, Command},
    };

    fn rule(port: u16, rule: PortRule) -> (PortKey, PortRule) {
        (PortKey { port_be: port.to_be(), proto: PROTO_TCP, pad: 0 }, rule)
    }

    const STEERED: PortRule = PortRule { first_slot: 0, workers: 2, flags: 0, rewrite_be: 0, first_worker: 0 };

    #[test]
    fn only_steered_ports_that_stay_as_they_are_can_be_shared() {
        let counted = PortRule { flags: PORT_COUNT_ONLY, ..STEERED };
        let ports = shared_ports(&[rule(80, STEERED), rule(443, STEERED), rule(5353, counted)]).expect("shared");
        assert_eq!(ports, BTreeSet::from([80, 443]));
        let rewritten = PortRule { rewrite_be: 10_080_u16.to_be(), ..STEERED };
        for (ports, reason) in [
            (vec![], "no port is steered"),
            (vec![rule(80, PortRule { workers: 0, ..STEERED })], "`--steer bind`"),
            (vec![rule(80, rewritten), rule(443, STEERED)], "`--steer rewrite`"),
        ] {
            let error = shared_ports(&ports).expect_err("refused").to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn clients_are_left_only_to_listeners() {
        let (web, both) = (BTreeSet::from([80]), BTreeSet::from([80, 443]));
        assert!(check_listeners(&web, &both).is_ok());
        let error = check_listeners(&both, &web).expect_err("refused").to_string();
        assert!(error.contains("listens on port 443, so"), "{error}");
    }

    #[test]
    fn the_share_is_shown_with_its_end() {
        let half = ClientShare::of_fraction(0.5).expect("a fraction");
        let applied = |lasts, renewal| AppliedShare { share: half, is_set: true, renewal, lasts };
        let unset = AppliedShare { share: ClientShare::ALL, is_set: false, ..applied(None, Renewal::Process) };
        for (applied, shown, percent) in [
            (unset, "100 % of the clients come to xdp-ingress (no share was set on this node)\n", 100.0),
            (
                applied(Some(Duration::from_secs(299)), Renewal::Process),
                "50 % of the clients come to xdp-ingress (renewed by the running process, else ends in 299 s)\n",
                50.0,
            ),
            (
                applied(Some(Duration::from_secs(9)), Renewal::Caller),
                "50 % of the clients come to xdp-ingress (renewed by its watcher, else ends in 9 s)\n",
                50.0,
            ),
            (
                applied(Some(Duration::ZERO), Renewal::Process),
                "0 % of the clients come to xdp-ingress (the share of 50 % was not renewed and has ended)\n",
                0.0,
            ),
            (
                AppliedShare { share: ClientShare::NONE, ..applied(None, Renewal::Process) },
                "0 % of the clients come to xdp-ingress (until it is changed, or the node starts again)\n",
                0.0,
            ),
        ] {
            assert_eq!(text(&applied), shown);
            assert_eq!(json(&applied)["percent"], percent);
        }
    }

    #[test]
    fn a_share_is_a_percentage() {
        let share = |line: &[&str]| match Cli::try_parse_from([&["xdp-ingress", "migrate", "shift"], line].concat()) {
            Ok(Cli { command: Command::Migrate(MigrateCommand::Shift(args)) }) => Some(args.share),
            _ => None,
        };
        assert_eq!(share(&[]), Some(None));
        assert_eq!(share(&["10%"]).flatten(), ClientShare::of_fraction(0.1));
        assert_eq!(share(&["0"]).flatten(), Some(ClientShare::NONE));
        assert_eq!(share(&["100%", "--no-listener-check"]).flatten(), Some(ClientShare::ALL));
        assert!(share(&["10%", "--abort-on", "5xx>1%", "--for", "15m"]).is_some());
        for wrong in [
            &["ten"][..],
            &["101"],
            &["--no-listener-check"],
            &["10", "20"],
            &["10", "--context", "a"],
            &["10", "--for", "1m"],
        ] {
            assert_eq!(share(wrong), None, "{wrong:?}");
        }
    }
}
