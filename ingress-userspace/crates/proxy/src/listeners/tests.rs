use ingress_model::{HostPattern, Listener, ListenerProtocol, RouteTable};

use super::*;

fn table(listeners: &[(&str, &[&str], bool)]) -> RouteTable {
    let mut table = RouteTable::default();
    for (name, hosts, has_stream) in listeners {
        let mut listener = Listener::new(if *has_stream { ListenerProtocol::Tcp } else { ListenerProtocol::Http });
        for host in *hosts {
            listener.hosts.insert(HostPattern::parse(host).expect("valid"), Arc::default());
        }
        if *has_stream {
            listener.streams.insert(HostPattern::Any, None);
        }
        table.listeners.insert(ListenerName::of_gateway("shop", "gateway", name), Arc::new(listener));
    }
    table
}

/// Compiles with this many free numbers. Returns the number of questions as well.
fn compile(previous: Option<&Listeners>, table: &RouteTable, mut free: i32) -> (Listeners, usize) {
    let mut asked = 0;
    let next = Listeners::compile(
        previous,
        table,
        |_| UpstreamId(0),
        |_| {
            asked += 1;
            free -= 1;
            (free >= 0).then_some(HostId(1))
        },
    );
    (next, asked)
}

#[test]
fn listeners_without_a_number_are_left_once_one_of_them_gets_none() {
    let all: &[(&str, &[&str], bool)] =
        &[("a", &["a.test", "b.test"], false), ("b", &[], true), ("c", &["c.test"], false)];
    let (first, asked) = compile(None, &table(all), 0);
    assert_eq!((first.unnumbered(), asked), (4, 4));
    // Free numbers, questions, and names without a number afterwards.
    let mut listeners = first;
    for (free, questions, left) in [(0, 1, 4), (1, 3, 3), (0, 1, 3), (2, 3, 1), (1, 1, 0), (0, 0, 0)] {
        let (next, asked) = compile(Some(&listeners), &table(all), free);
        assert_eq!((asked, next.unnumbered()), (questions, left), "{free} free of {}", listeners.unnumbered());
        listeners = next;
    }
}

#[test]
fn names_of_removed_listeners_and_hosts_no_longer_lack_a_number() {
    let (all, _) = compile(None, &table(&[("a", &["a.test", "b.test"], false), ("b", &[], true)]), 0);
    assert_eq!(all.unnumbered(), 3);
    let (fewer, _) = compile(Some(&all), &table(&[("a", &["b.test"], false), ("b", &[], true)]), 0);
    assert_eq!(fewer.unnumbered(), 2);
    let (one, _) = compile(Some(&fewer), &table(&[("a", &["b.test"], false)]), 0);
    assert_eq!(one.unnumbered(), 1);
    assert_eq!(compile(Some(&one), &table(&[]), 0).0.unnumbered(), 0);
}
