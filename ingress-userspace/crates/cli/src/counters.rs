//! Names and JSON form of counters, shared by the admin address and the commands that read the pins.

use ingress_common::{HostL7, HostNet, RawHostId, StatusClass, Traffic};
use serde_json::{Map, Value, json};

/// Name of host 0, which is not a valid host name.
pub const UNATTRIBUTED: &str = "(unattributed)";
/// Name of the deny rule shared by prefixes without their own.
pub const OTHERS: &str = "(others)";

/// Returns all counters of one host.
pub fn host(name: &str, id: RawHostId, l7: &HostL7, net: &HostNet) -> Value {
    let HostL7 { requests, bytes_in, bytes_out, active } = l7;
    let HostNet { rx_packets, rx_bytes, tx_packets, tx_bytes } = net;
    let requests: Map<String, Value> = StatusClass::NAMES
        .iter()
        .zip(requests.to_array())
        .map(|(&class, count)| (class.to_owned(), count.into()))
        .collect();
    json!({
        "host": name, "id": id, "requests": requests, "bytes_in": bytes_in, "bytes_out": bytes_out, "active": active,
        "rx_packets": rx_packets, "rx_bytes": rx_bytes, "tx_packets": tx_packets, "tx_bytes": tx_bytes,
    })
}

/// Returns packets and bytes by the name of the reason.
pub fn totals(totals: impl IntoIterator<Item = (&'static str, Traffic)>) -> Value {
    let total = |(name, Traffic { packets, bytes }): (&'static str, Traffic)| {
        (name.to_owned(), json!({ "packets": packets, "bytes": bytes }))
    };
    Value::Object(totals.into_iter().map(total).collect())
}
