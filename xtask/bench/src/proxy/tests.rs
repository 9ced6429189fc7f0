//! Tests of the sessions and of their order.

use super::*;
use crate::parsed;

fn sessions_of(words: &str, cpus: usize) -> Vec<Session> {
    sessions(&parsed(words).expect("understood"), cpus)
}

#[test]
fn peers_that_log_run_by_themselves_and_two_workers_unpinned() {
    let pinned = Setting { workers: 1, pin: true, access_log: false, http3: false };
    let logged = Setting { access_log: true, ..pinned };
    let unpinned = Setting { workers: 2, pin: false, access_log: false, http3: false };
    let http3 = Setting { http3: true, ..pinned };
    let all = |words: &str| -> Vec<(Setting, usize, Latency)> {
        let sessions = sessions_of(words, 2).into_iter();
        sessions.map(|Session { setting, cases, latency }| (setting, cases.len(), latency)).collect()
    };
    // Without h1log, and without those of HTTP/3, which have four others beside them.
    let (most, by_http3) = (Case::value_variants().len() - 1 - 6, 6 + 4);
    for (words, expect) in [
        (
            "",
            &[
                (pinned, most, Latency::Quiet),
                (logged, 1, Latency::None),
                (unpinned, 3, Latency::None),
                (http3, by_http3, Latency::None),
            ][..],
        ),
        (
            "--quick",
            &[(pinned, most, Latency::Quiet), (logged, 1, Latency::None), (http3, by_http3, Latency::None)][..],
        ),
        ("--case h3,h310m", &[(http3, 3, Latency::None)][..]),
        ("--case h1", &[(pinned, 1, Latency::None)][..]),
        ("--case h1log", &[(logged, 1, Latency::None)][..]),
        ("--case h1log --latency", &[(pinned, 0, Latency::Quiet), (logged, 1, Latency::None)][..]),
        (
            "--record",
            &[
                (pinned, most, Latency::QuietAndAmidChanges),
                (logged, 1, Latency::None),
                (unpinned, 3, Latency::None),
                (http3, by_http3, Latency::None),
            ][..],
        ),
        ("--case h1 --changes", &[(pinned, 1, Latency::QuietAndAmidChanges)][..]),
        ("--case h1,h2 --workers 2", &[(unpinned, 2, Latency::None)][..]),
    ] {
        assert_eq!(all(words), expect, "{words}");
    }
    assert!(sessions_of("", 1).iter().all(|session| !session.setting.pin));
}

#[test]
fn caddy_is_a_peer_of_http3_or_by_request() {
    let peers = |words: &str, http3| parsed::<Args>(words).expect("understood").peers(http3);
    assert_eq!(peers("", false), [Peer::Nginx, Peer::Haproxy, Peer::XdpIngress]);
    assert_eq!(peers("", true), [Peer::Nginx, Peer::Haproxy, Peer::Caddy, Peer::XdpIngress]);
    for http3 in [false, true] {
        assert_eq!(peers("--peer caddy,again", http3), [Peer::Caddy, Peer::Again]);
    }
}

#[test]
fn every_peer_runs_in_each_round_and_the_first_rotates() {
    let expect = [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (1, 0)];
    assert!(turns(2, 3).eq(expect));
}
