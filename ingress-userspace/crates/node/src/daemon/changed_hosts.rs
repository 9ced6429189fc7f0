//! The hosts that differ between two route tables, under the names by which they are counted.

use ingress_model::{HostName, HostPattern, ListenerName, RouteTable, Tree, tree::Difference};

/// A host that a table adds, changes or removes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChangedHost<'t> {
    pub(super) name: HostName<'t>,
    pub(super) is_gone: bool,
}

/// Returns the hosts of Ingresses that differ, then those of Gateways' listeners. The cost is that of the difference.
pub(super) fn changed_hosts<'t>(before: &'t RouteTable, after: &'t RouteTable) -> Vec<ChangedHost<'t>> {
    let mut changed = Vec::new();
    collect(None, &before.hosts, &after.hosts, &mut changed);
    for Difference { key: listener, old, new } in before.listeners.differences(&after.listeners) {
        match (old, new) {
            (Some(old), Some(new)) => {
                collect(Some(listener), &old.hosts, &new.hosts, &mut changed);
                collect(Some(listener), &old.streams, &new.streams, &mut changed);
            }
            (Some(only), None) | (None, Some(only)) => {
                let name = |pattern| HostName { listener: Some(listener), pattern };
                let is_gone = new.is_none();
                let patterns = only.hosts.keys().chain(only.streams.keys());
                changed.extend(patterns.map(|pattern| ChangedHost { name: name(pattern), is_gone }));
            }
            (None, None) => {}
        }
    }
    changed
}

fn collect<'t, V: PartialEq>(
    listener: Option<&'t ListenerName>,
    before: &'t Tree<HostPattern, V>,
    after: &'t Tree<HostPattern, V>,
    changed: &mut Vec<ChangedHost<'t>>,
) {
    let differences = before.differences(after).into_iter();
    changed.extend(differences.map(|Difference { key: pattern, old: _, new }| ChangedHost {
        name: HostName { listener, pattern },
        is_gone: new.is_none(),
    }));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ingress_model::{Listener, ListenerProtocol};

    use super::*;

    fn listener(hosts: &[&str]) -> Arc<Listener> {
        let mut listener = Listener::new(ListenerProtocol::Http);
        for host in hosts {
            listener.hosts.insert(HostPattern::parse_suffix(host).expect("valid"), Arc::default());
        }
        Arc::new(listener)
    }

    fn check(before: &RouteTable, after: &RouteTable, expect: &[&str]) {
        let changed = changed_hosts(before, after)
            .into_iter()
            .map(|ChangedHost { name, is_gone }| format!("{}{name}", if is_gone { "-" } else { "+" }));
        assert_eq!(changed.collect::<Vec<_>>(), expect);
    }

    #[test]
    fn hosts_are_named_with_their_listeners() {
        let (mut before, mut after) = (RouteTable::default(), RouteTable::default());
        let host = |name: &str| HostPattern::parse(name).expect("valid");
        let name = |name: &str| ListenerName::of_gateway("shop", "gateway", name);
        before.hosts.insert(host("old.test"), Arc::default());
        after.hosts.insert(host("new.test"), Arc::default());
        before.listeners.insert(name("kept"), listener(&["a.test", "*.b.test"]));
        after.listeners.insert(name("kept"), listener(&["*.b.test", "c.test"]));
        before.listeners.insert(name("gone"), listener(&["a.test"]));
        let mut stream = Listener::new(ListenerProtocol::Tcp);
        stream.streams.insert(HostPattern::Any, None);
        after.listeners.insert(name("tcp"), Arc::new(stream));
        check(
            &before,
            &after,
            &[
                "+new.test",
                "-old.test",
                "-a.test@shop/gateway/gone",
                "-a.test@shop/gateway/kept",
                "+c.test@shop/gateway/kept",
                "+*@shop/gateway/tcp",
            ],
        );
        check(&after, &after, &[]);
    }
}
