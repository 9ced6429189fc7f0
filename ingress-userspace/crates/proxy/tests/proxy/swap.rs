//! A new snapshot takes effect for the next request and cuts nothing.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use ingress_proxy_testing::{Origin, Proxy, Table};

#[test]
fn the_next_request_sees_a_change() {
    let (old, new) = (Origin::answering("old"), Origin::answering("new"));
    let proxy = Proxy::start(&Table::default().host("a.test", &[old.address]));
    let mut client = proxy.client();
    assert_eq!(client.get("a.test", "/").text(), "old");
    proxy.publish(&Table::default().host("a.test", &[new.address]));
    assert_eq!(client.get("a.test", "/").text(), "new");
    proxy.publish(&Table::default());
    assert_eq!(client.get("a.test", "/").status, 404);
}

#[test]
fn a_thousand_changes_under_load_fail_no_request() {
    let (old, new) = (Origin::answering("old"), Origin::answering("new"));
    let tables = [&old, &new].map(|origin| Table::default().host("a.test", &[origin.address]).host("b.test", &[]));
    let proxy = Proxy::start(&tables[0]);
    let (done, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut kept = proxy.client();
                while !done.load(SeqCst) {
                    let response = kept.get("a.test", "/");
                    assert_eq!(response.status, 200, "{}", response.text());
                    assert_eq!(proxy.client().get("a.test", "/").status, 200);
                    served.fetch_add(2, SeqCst);
                }
            });
        }
        for change in 0..1000 {
            let before = served.load(SeqCst);
            proxy.publish(&tables[change % 2]);
            // At least one request runs between any two batches of changes, so that the changes meet load.
            while change % 10 == 0 && served.load(SeqCst) == before {
                std::thread::yield_now();
            }
        }
        done.store(true, SeqCst);
    });
    assert_eq!(proxy.count(1).requests.success, served.load(SeqCst) as u64);
    assert_eq!(proxy.shared.snapshot().generation, 1001);
}
