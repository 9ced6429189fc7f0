//! Decides which statuses to write. The module is pure: it takes the time as an argument, and writes nothing.
//!
//! Writes cover only statuses that differ from the wanted ones, and only those of the Ingresses served. Other Ingresses
//! that have fields of this controller are cleared once they have been out of effect for a while. Both writes are
//! server-side applies by one field manager. A status that another manager has taken over since belongs to that
//! manager, and clearing it changes nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::networking::v1::{IngressLoadBalancerIngress, IngressPortStatus};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    ObjectName,
    addresses::Address,
    field_owners::entries,
    input::{ManagedIngress, ManagedState},
};

/// A status to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Write {
    pub(super) name: ObjectName,
    pub(super) uid: Arc<str>,
    /// Empty: remove this controller's entries.
    pub(super) entries: Arc<[StatusEntry]>,
}

/// An entry of a status, reduced to its meaning.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StatusEntry {
    address: Address,
    ports: BTreeSet<u16>,
}

/// Recent writes. They keep a status from being written again while its watch event is on the way, and from being
/// fought over when another controller writes to the same Ingress.
#[derive(Debug, Default)]
pub(super) struct RecentWrites {
    written: BTreeMap<ObjectName, WriteAttempt>,
    /// When each Ingress with a status of this controller went out of effect.
    left: BTreeMap<ObjectName, Instant>,
}

#[derive(Debug)]
struct WriteAttempt {
    uid: Arc<str>,
    entries: Arc<[StatusEntry]>,
    at: Instant,
}

/// The statuses to write now, and when there may be more without any change.
#[derive(Debug, Default)]
pub(super) struct StatusPlan {
    pub(super) writes: Vec<Write>,
    pub(super) next: Option<Instant>,
    /// The Ingresses to look at again even without a change: those of `writes`, and those with a timer.
    pub(super) again: BTreeSet<ObjectName>,
}

/// How long an Ingress must be out of effect before its status is cleared. A class that is deleted and created anew
/// should not remove names from the DNS.
pub(super) const LEFT_FOR: Duration = Duration::from_secs(5);

/// Returns the entries that show `addresses`, each with `ports`.
pub(super) fn wanted(addresses: &[Address], ports: &[u16]) -> Arc<[StatusEntry]> {
    let ports: BTreeSet<u16> = ports.iter().copied().collect();
    addresses.iter().map(|address| StatusEntry { address: address.clone(), ports: ports.clone() }).collect()
}

/// Plans the writes after which each served Ingress of `managed_ingresses` shows `wanted`; `None` means that the
/// addresses are not known. `interval` is how long a status stays that was written and yet differs.
///
/// Ingresses that are not among `managed_ingresses` neither changed nor had a timer since the last plan.
pub(super) fn plan(
    managed_ingresses: &[ManagedIngress],
    wanted: Option<&Arc<[StatusEntry]>>,
    ledger: &mut RecentWrites,
    interval: Duration,
    now: Instant,
) -> StatusPlan {
    let mut plan = StatusPlan::default();
    let mut left = BTreeMap::new();
    let nothing: Arc<[StatusEntry]> = Arc::default();
    for ManagedIngress { ingress, managed_state } in managed_ingresses {
        let name = ObjectName::of(&ingress.metadata);
        let target = match (managed_state, wanted) {
            (ManagedState::InEffect, Some(wanted)) => wanted,
            (ManagedState::InEffect, None) => continue,
            (ManagedState::Left, _) => {
                let since = *ledger.left.get(&name).unwrap_or(&now);
                left.insert(name.clone(), since);
                if now < since + LEFT_FOR {
                    plan.wake(&name, since + LEFT_FOR);
                    continue;
                }
                &nothing
            }
        };
        if is_shown(target, entries(ingress)) {
            continue;
        }
        let uid: Arc<str> = ingress.metadata.uid.as_deref().unwrap_or_default().into();
        match ledger.written.get(&name) {
            Some(WriteAttempt { uid: last, entries, at })
                if *last == uid && entries == target && now < *at + interval =>
            {
                plan.wake(&name, *at + interval);
            }
            _ => {
                plan.again.insert(name.clone());
                plan.writes.push(Write { name, uid, entries: Arc::clone(target) });
            }
        }
    }
    ledger.left = left;
    plan
}

/// Returns `true` if `present` means the same as `wanted`, regardless of order and spelling.
fn is_shown(wanted: &[StatusEntry], present: &[IngressLoadBalancerIngress]) -> bool {
    let parsed: Option<BTreeSet<StatusEntry>> = present.iter().map(StatusEntry::parse).collect();
    parsed.is_some_and(|parsed| parsed.len() == present.len() && parsed.iter().eq(wanted))
}

// === impl StatusPlan ===

impl StatusPlan {
    fn wake(&mut self, name: &ObjectName, at: Instant) {
        self.again.insert(name.clone());
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }
}

// === impl RecentWrites ===

impl RecentWrites {
    /// Records that `write` was sent, regardless of the result.
    pub(super) fn note(&mut self, write: Write, at: Instant) {
        let Write { name, uid, entries } = write;
        self.written.insert(name, WriteAttempt { uid, entries, at });
    }

    /// Drops attempts that are older than `interval`.
    pub(super) fn prune(&mut self, interval: Duration, now: Instant) {
        self.written.retain(|_, attempt| now < attempt.at + interval);
    }
}

// === impl Write ===

impl Write {
    /// Returns the object to apply. It holds only the fields that this controller shall own. The UID keeps the write
    /// from a later object of the same name.
    pub(super) fn body(&self) -> Value {
        let Self { name: ObjectName { namespace, name }, uid, entries } = self;
        let mut body = json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "Ingress",
            "metadata": { "name": name.as_ref(), "namespace": namespace.as_ref(), "uid": uid.as_ref() },
        });
        if !entries.is_empty() {
            let entries: Vec<Value> = entries.iter().map(StatusEntry::to_json).collect();
            body["status"] = json!({ "loadBalancer": { "ingress": entries } });
        }
        body
    }
}

// === impl StatusEntry ===

impl StatusEntry {
    /// Returns `None` for an entry that this controller would not write.
    fn parse(entry: &IngressLoadBalancerIngress) -> Option<Self> {
        let IngressLoadBalancerIngress { hostname, ip, ports } = entry;
        let text = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let address = match (text(ip), text(hostname)) {
            (Some(ip), None) => Address::Ip(ip.parse().ok()?),
            (None, Some(name)) => Address::Name(name),
            _ => return None,
        };
        let all = ports.as_deref().unwrap_or_default();
        let ports: Option<BTreeSet<u16>> = all
            .iter()
            .map(|IngressPortStatus { error, port, protocol }| {
                (error.is_none() && protocol == "TCP").then(|| u16::try_from(*port).ok()).flatten()
            })
            .collect();
        Some(Self { address, ports: ports? })
    }

    fn to_json(&self) -> Value {
        let Self { address, ports } = self;
        let ports: Vec<Value> = ports.iter().map(|port| json!({ "port": port, "protocol": "TCP" })).collect();
        match address {
            Address::Ip(ip) => json!({ "ip": ip.to_string(), "ports": ports }),
            Address::Name(name) => json!({ "hostname": name, "ports": ports }),
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::networking::v1::Ingress;

    use super::*;
    use crate::status::field_owners::reduce;

    const INTERVAL: Duration = Duration::from_secs(60);

    fn managed(managed_state: ManagedState, present: &Value) -> ManagedIngress {
        let mut ingress: Ingress = serde_json::from_value(json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
            "metadata": {"name": "a", "namespace": "n", "uid": "u",
                "managedFields": [{"manager": "xdp-ingress", "operation": "Apply", "subresource": "status",
                    "fieldsType": "FieldsV1", "fieldsV1": {"f:status": {}}}]},
            "status": {"loadBalancer": {"ingress": present}},
        }))
        .expect("an Ingress");
        reduce(&mut ingress);
        ManagedIngress { ingress: Arc::new(ingress), managed_state }
    }

    fn addresses(texts: &[&str]) -> Arc<[StatusEntry]> {
        let addresses: Vec<Address> = texts.iter().map(|text| text.parse().expect("an address")).collect();
        wanted(&addresses, &[80, 443])
    }

    fn ports() -> Value {
        json!([{"port": 80, "protocol": "TCP"}, {"port": 443, "protocol": "TCP"}])
    }

    #[test]
    fn a_status_is_written_only_if_it_differs() {
        let reversed = json!([{"port": 443, "protocol": "TCP"}, {"port": 80, "protocol": "TCP"}]);
        let v4 = json!({"ip": "192.0.2.1", "ports": ports()});
        let v6 = json!({"ip": "2001:db8::1", "ports": ports()});
        for (texts, present, is_written) in [
            (&["192.0.2.1"][..], json!([v4]), false),
            (&["192.0.2.1"], json!([{"ip": "192.0.2.1", "ports": reversed}]), false),
            (&["192.0.2.1", "2001:db8::1"], json!([v6, v4]), false),
            (&["2001:db8::1"], json!([{"ip": "2001:DB8:0::1", "ports": ports()}]), false),
            (&["edge.test"], json!([{"hostname": "edge.test", "ports": ports()}]), false),
            (&[], json!([]), false),
            (&["192.0.2.1"], json!([]), true),
            (&["192.0.2.1"], json!([{"ip": "192.0.2.1"}]), true),
            (&["192.0.2.1"], json!([v4, v4]), true),
            (&["192.0.2.1"], json!([v4, v6]), true),
            (&["192.0.2.1", "2001:db8::1"], json!([v4]), true),
            (&["192.0.2.1"], json!([{"ip": "192.0.2.1", "hostname": "edge.test", "ports": ports()}]), true),
            (
                &["192.0.2.1"],
                json!([{"ip": "192.0.2.1", "ports": [{"port": 80, "protocol": "TCP", "error": "Broken"},
                {"port": 443, "protocol": "TCP"}]}]),
                true,
            ),
            (&[], json!([v4]), true),
        ] {
            let wanted = addresses(texts);
            let managed_ingresses = [managed(ManagedState::InEffect, &present)];
            let StatusPlan { writes, next, again } =
                plan(&managed_ingresses, Some(&wanted), &mut RecentWrites::default(), INTERVAL, Instant::now());
            assert_eq!(
                (writes.len(), again.len(), next),
                (usize::from(is_written), usize::from(is_written), None),
                "{texts:?} {present}"
            );
            assert!(writes.iter().all(|write| write.entries == wanted));
        }
    }

    #[test]
    fn unknown_addresses_change_nothing() {
        let managed_ingresses = [
            managed(ManagedState::InEffect, &json!([{"ip": "192.0.2.1"}])),
            managed(ManagedState::InEffect, &json!([])),
        ];
        let StatusPlan { writes, next, again } =
            plan(&managed_ingresses, None, &mut RecentWrites::default(), INTERVAL, Instant::now());
        assert_eq!((writes, again, next), (Vec::new(), BTreeSet::new(), None));
    }

    #[test]
    fn the_status_of_a_released_ingress_is_cleared_after_a_delay() {
        let managed_ingresses = [managed(ManagedState::Left, &json!([{"ip": "192.0.2.1"}]))];
        let mut ledger = RecentWrites::default();
        let start = Instant::now();
        let mut at =
            |managed_ingresses: &[ManagedIngress], now| plan(managed_ingresses, None, &mut ledger, INTERVAL, now);
        let first = at(&managed_ingresses, start);
        assert_eq!((first.writes.len(), first.again.len(), first.next), (0, 1, Some(start + LEFT_FOR)));
        // It is served again in between, so the delay begins anew.
        at(&[managed(ManagedState::InEffect, &json!([{"ip": "192.0.2.1"}]))], start + LEFT_FOR / 2);
        let again = start + LEFT_FOR;
        assert_eq!(at(&managed_ingresses, again).next, Some(again + LEFT_FOR));
        let cleared = at(&managed_ingresses, again + LEFT_FOR).writes;
        assert_eq!(cleared.len(), 1);
        assert_eq!(
            cleared[0].body(),
            json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
                "metadata": {"name": "a", "namespace": "n", "uid": "u"}})
        );
    }

    #[test]
    fn a_status_is_not_rewritten_within_the_interval() {
        let other = json!([{"ip": "198.51.100.1"}]);
        let managed_ingresses = [managed(ManagedState::InEffect, &other)];
        let (wanted, news) = (addresses(&["192.0.2.1"]), addresses(&["192.0.2.2"]));
        let mut ledger = RecentWrites::default();
        let start = Instant::now();
        let writes = plan(&managed_ingresses, Some(&wanted), &mut ledger, INTERVAL, start).writes;
        ledger.note(writes[0].clone(), start);
        let held = plan(&managed_ingresses, Some(&wanted), &mut ledger, INTERVAL, start);
        assert_eq!((held.writes.len(), held.again.len(), held.next), (0, 1, Some(start + INTERVAL)));
        assert_eq!(
            plan(&managed_ingresses, Some(&news), &mut ledger, INTERVAL, start).writes.len(),
            1,
            "new addresses do not wait"
        );
        let mut recreated = managed(ManagedState::InEffect, &other);
        Arc::make_mut(&mut recreated.ingress).metadata.uid = Some("v".into());
        assert_eq!(plan(&[recreated], Some(&wanted), &mut ledger, INTERVAL, start).writes.len(), 1, "nor a new object");
        assert_eq!(plan(&managed_ingresses, Some(&wanted), &mut ledger, INTERVAL, start + INTERVAL).writes.len(), 1);
    }

    #[test]
    fn a_status_is_applied_whole() {
        let write =
            Write { name: ObjectName::new("n", "a"), uid: "u".into(), entries: addresses(&["192.0.2.1", "edge.test"]) };
        let expect = expect_test::expect![[r#"
            {
              "apiVersion": "networking.k8s.io/v1",
              "kind": "Ingress",
              "metadata": {
                "name": "a",
                "namespace": "n",
                "uid": "u"
              },
              "status": {
                "loadBalancer": {
                  "ingress": [
                    {
                      "ip": "192.0.2.1",
                      "ports": [
                        {
                          "port": 80,
                          "protocol": "TCP"
                        },
                        {
                          "port": 443,
                          "protocol": "TCP"
                        }
                      ]
                    },
                    {
                      "hostname": "edge.test",
                      "ports": [
                        {
                          "port": 80,
                          "protocol": "TCP"
                        },
                        {
                          "port": 443,
                          "protocol": "TCP"
                        }
                      ]
                    }
                  ]
                }
              }
            }"#]];
        expect.assert_eq(&serde_json::to_string_pretty(&write.body()).expect("JSON"));
    }
}
