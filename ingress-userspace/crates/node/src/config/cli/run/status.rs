//! Options of the heading "Status": what is written to Ingresses, and by which replica.

use std::time::Duration;

use clap::{ArgAction, Args};
use ingress_cli::{
    duration,
    options::{boolean, object_name},
};
use ingress_control::{change::ObjectName, status::Address};

#[derive(Debug, Args)]
#[command(next_help_heading = "Status")]
pub(crate) struct StatusArgs {
    /// Write addresses to the status of served Ingresses. Events and leader election do not depend on this option. It
    /// has no effect with manifests.
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1,
          require_equals = true, action = ArgAction::Set, value_parser = boolean)]
    pub(crate) update_status: bool,

    /// Clear the statuses when the last replica stops.
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1,
          require_equals = true, action = ArgAction::Set, value_parser = boolean)]
    pub(crate) update_status_on_shutdown: bool,

    /// Service with the addresses to show in statuses. Default: addresses of the nodes that run this controller.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = object_name, conflicts_with = "publish_status_address")]
    pub(crate) publish_service: Option<ObjectName>,

    /// Addresses to show in statuses: IPs or names; repeatable, or separated by commas.
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    pub(crate) publish_status_address: Vec<Address>,

    /// Prefer internal IPs of nodes to external ones in statuses. External IPs are shown only for nodes without
    /// internal ones.
    #[arg(long, value_name = "BOOL", default_value_t = false, default_missing_value = "true", num_args = 0..=1,
          require_equals = true, action = ArgAction::Set, value_parser = boolean)]
    pub(crate) report_node_internal_ip_address: bool,

    /// Keep a Service for each Gateway, with the labels and annotations of its `spec.infrastructure`. It has no selector
    /// and no ports.
    #[arg(long)]
    pub(crate) gateway_services: bool,

    /// Minimum time before a status that another writer changed is written again, at least 1s.
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = status_interval)]
    pub(crate) status_update_interval: Duration,

    /// Name of the Lease for the election of the replica that writes statuses and events.
    #[arg(long, value_name = "NAME", default_value = "xdp-ingress-leader")]
    pub(crate) election_id: String,

    /// Time that the Lease of a lost leader blocks other replicas, in whole seconds, at least 3s.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = election_ttl)]
    pub(crate) election_ttl: Duration,

    /// Write statuses and events without leader election; for a single replica.
    #[arg(long, value_name = "BOOL", default_value_t = false, default_missing_value = "true", num_args = 0..=1,
          require_equals = true, action = ArgAction::Set, value_parser = boolean)]
    pub(crate) disable_leader_election: bool,

    /// Name of this pod; shown in the Lease and in events.
    #[arg(long, value_name = "NAME", env = "POD_NAME", hide = true)]
    pub(crate) pod_name: Option<String>,

    /// Namespace of this pod and of the Lease.
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE", default_value = "xdp-ingress", hide = true)]
    pub(crate) pod_namespace: String,

    /// Address of this pod, for questions of the leader.
    #[arg(long, value_name = "ADDR", env = "POD_IP", hide = true)]
    pub(crate) pod_ip: Option<String>,
}

fn status_interval(text: &str) -> Result<Duration, String> {
    duration::at_least(text, Duration::from_secs(1))
}

/// Parses a whole number of seconds, in which a Lease counts. With less than three, no renewal could fail.
fn election_ttl(text: &str) -> Result<Duration, String> {
    let ttl = duration::at_least(text, Duration::from_secs(3))?;
    if ttl.subsec_nanos() == 0 { Ok(ttl) } else { Err(duration::invalid(text, "whole seconds")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn election_ttls_are_whole_seconds() {
        for (text, expect) in [
            ("30s", Some(30)),
            ("2m", Some(120)),
            ("45", Some(45)),
            ("2s", None),
            ("1h", Some(3600)),
            ("1m30s", Some(90)),
            ("3.5s", None),
            ("", None),
        ] {
            assert_eq!(election_ttl(text).ok().map(|ttl| ttl.as_secs()), expect, "{text}");
        }
    }
}
