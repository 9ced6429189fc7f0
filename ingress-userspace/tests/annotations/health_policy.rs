//! Health policy of pods: outlier ejection, health checks, circuit breakers, slow start.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    thread,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use ingress_control::translate::Options;
use ingress_proxy::UpstreamView;

use super::{Ingress, Site};
use ingress_proxy_testing::pki::{Authority, TlsPod};
use ingress_proxy_testing::{Client, Origin, Proxy, serve_connections, wait_until};

/// Returns the view of the only upstream that has one.
fn view(proxy: &Proxy) -> Option<UpstreamView> {
    let mut views = proxy.shared.upstreams();
    assert!(views.len() < 2, "{views:?}");
    views.pop()
}

/// A pod that answers `name`, or 500 while it is `ill`; to `/healthz` as well as to anything else.
fn patient(name: &'static str, ill: &Arc<AtomicBool>) -> Origin {
    let ill = Arc::clone(ill);
    Origin::start(move |peer| {
        while peer.request().is_some() {
            if ill.load(SeqCst) {
                peer.send("HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n");
            } else {
                peer.answer(name);
            }
        }
    })
}

/// Returns the number of requests, without health checks, that `origin` has received.
fn requests(origin: &Origin) -> usize {
    origin.heads().iter().filter(|head| !head.contains("health-check")).count()
}

fn addresses(pods: &[&Origin]) -> Vec<SocketAddr> {
    pods.iter().map(|pod| pod.address).collect()
}

#[test]
fn a_pod_that_refuses_connections_is_ejected_and_counted() {
    let up = Origin::answering("up");
    let site = Ingress::with(&[("eject-time", "10m"), ("eject-time-max", "10m")])
        .serve_from(&[Origin::refusing(), up.address])
        .in_order();
    assert!((0..10).all(|_| site.get("/").text() == "up"));
    let view = view(&site.proxy).expect("something to tell");
    assert_eq!((view.healthy, view.ejected, view.ejections, view.retries), (1, 1, 1, 1), "{view:?}");
    // Default settings, with two endpoints that refuse: one always remains.
    let site = Ingress::with(&[]).serve_from(&[Origin::refusing(), Origin::refusing()]).in_order();
    assert!((0..4).all(|_| site.get("/").status == 502));
    let view = self::view(&site.proxy).expect("something to tell");
    // By now the first ejection may be over.
    assert!(view.ejections >= 1 && view.ejected <= 1, "{view:?}");
    let never = Ingress::with(&[("eject-after", "0")]).serve_from(&[Origin::refusing(), up.address]).in_order();
    assert!((0..10).all(|_| never.get("/").text() == "up"));
    let view = self::view(&never.proxy).expect("something to tell");
    assert!(view.ejections == 0 && view.retries >= 5, "{view:?}");
}

#[test]
fn server_errors_eject_if_configured() {
    let ill = Arc::new(AtomicBool::new(true));
    let (bad, good) = (patient("bad", &ill), Origin::answering("good"));
    let pods = addresses(&[&bad, &good]);
    let eject = [("eject-on-5xx", "true"), ("eject-after", "3"), ("eject-time", "10m"), ("eject-time-max", "10m")];
    let site = Ingress::with(&eject).serve_from(&pods).in_order();
    let statuses: Vec<_> = (0..20).map(|_| site.get("/").status).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 500).count(), 3, "{statuses:?}");
    assert_eq!(view(&site.proxy).expect("something to tell").ejections, 1);
    let site = Ingress::with(&[]).serve_from(&pods).in_order();
    assert_eq!((0..20).filter(|_| site.get("/").status == 500).count(), 10);
    assert_eq!(view(&site.proxy), None);
}

const FAST: [(&str, &str); 3] = [
    ("health-check-interval", "1s"),
    ("health-check-healthy-threshold", "2"),
    ("health-check-unhealthy-threshold", "2"),
];

fn checked(annotations: &[(&str, &str)], pods: &[SocketAddr]) -> Site {
    Ingress::with(&[annotations, &FAST].concat()).serve_from(pods).in_order()
}

fn wait_for_unhealthy(site: &Site, count: usize) {
    wait_until("checks have said so", || view(&site.proxy).map_or(0, |view| view.unhealthy) == count);
}

#[test]
fn an_unhealthy_pod_gets_no_requests_until_its_checks_pass() {
    let ill = [Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false))];
    let (first, second) = (patient("first", &ill[0]), patient("second", &ill[1]));
    let site = checked(
        &[("health-check-path", "/healthz?x"), ("health-check-host", "h.test")],
        &addresses(&[&first, &second]),
    );
    wait_for_unhealthy(&site, 1);
    let before = requests(&first);
    assert!((0..20).all(|_| site.get("/").text() == "second"));
    assert_eq!(requests(&first), before);
    let question = first.heads().into_iter().find(|head| head.contains("health-check")).expect("a check");
    assert!(question.starts_with("get /healthz?x http/1.1\r\nhost: h.test\r\n"), "{question}");
    // All are ill: any is better than none.
    ill[1].store(true, SeqCst);
    wait_for_unhealthy(&site, 2);
    assert!((0..4).all(|_| site.get("/").status == 500));
    assert!(requests(&first) > before);
    ill[0].store(false, SeqCst);
    wait_for_unhealthy(&site, 1);
    assert!((0..20).all(|_| site.get("/").text() == "first"));
    let [passed, failed, unanswered] = view(&site.proxy).expect("something to tell").checks;
    assert!(passed > 2 && failed > 2 && unanswered == 0, "{passed} {failed} {unanswered}");
}

#[test]
fn checks_use_the_configured_port_and_statuses() {
    let health = Origin::start(|peer| {
        while peer.request().is_some() {
            peer.send("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let (first, second) = (Origin::answering("first"), Origin::answering("second"));
    let pods = addresses(&[&first, &second]);
    let port = health.address.port().to_string();
    let check = [("health-check", "http"), ("health-check-port", &*port)];
    let site = checked(&check, &pods);
    wait_for_unhealthy(&site, 2);
    let site = checked(&[&check[..], &[("health-check-expected-statuses", "200, 400-404")]].concat(), &pods);
    wait_until("checks pass", || view(&site.proxy).is_some_and(|view| view.checks[0] > 4));
    assert_eq!(view(&site.proxy).expect("something to tell").unhealthy, 0);
    assert_eq!(first.heads().len() + second.heads().len(), 0);
}

#[test]
fn tcp_checks_only_connect() {
    let up = Origin::answering("up");
    let site = checked(&[("health-check", "tcp"), ("eject-after", "0")], &[Origin::refusing(), up.address]);
    wait_for_unhealthy(&site, 1);
    assert!(view(&site.proxy).expect("something to tell").checks[2] >= 2);
    let off = checked(&[("health-check", "off"), ("health-check-path", "/")], &[Origin::refusing(), up.address]);
    assert!((0..4).all(|_| off.get("/").text() == "up"));
    assert_eq!(view(&off.proxy).expect("something to tell").checks, [0; 3]);
}

#[test]
fn pods_with_tls_are_checked_over_tls() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let ill = Arc::new(AtomicBool::new(true));
    let answer_ill = Arc::clone(&ill);
    let pod = TlsPod::start(&Authority::new("any").issue("any.test"), None, &[], move |mut stream| {
        let ill = Arc::clone(&answer_ill);
        async move {
            let (mut head, mut byte) = (Vec::new(), [0]);
            while let Ok(1) = stream.read(&mut byte).await {
                head.push(byte[0]);
                if head.ends_with(b"\r\n\r\n") {
                    let status = if ill.load(SeqCst) { "503 No" } else { "200 OK" };
                    drop(stream.write_all(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").as_bytes()).await);
                    drop(stream.flush().await);
                    head.clear();
                }
            }
        }
    });
    let site = checked(&[("backend-protocol", "HTTPS"), ("health-check-path", "/")], &[pod.address]);
    wait_for_unhealthy(&site, 1);
    ill.store(false, SeqCst);
    wait_for_unhealthy(&site, 0);
}

/// A gRPC pod with a health service: `status` is the status that it returns, 1 for healthy.
fn grpc_pod(status: Arc<AtomicUsize>, asked: Arc<std::sync::Mutex<Vec<(String, Bytes)>>>) -> SocketAddr {
    serve_connections(move |stream| {
        let (status, asked) = (Arc::clone(&status), Arc::clone(&asked));
        async move {
            let Ok(mut connection) = h2::server::handshake(stream).await else { return };
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                let (status, asked) = (Arc::clone(&status), Arc::clone(&asked));
                tokio::spawn(async move {
                    let (parts, mut body) = request.into_parts();
                    let message = body.data().await.and_then(Result::ok).unwrap_or_default();
                    let fields =
                        format!("{} {} {:?}", parts.method, parts.uri.path(), parts.headers.get("content-type"));
                    asked.lock().expect("unpoisoned").push((fields, message));
                    let head = Response::builder().header("content-type", "application/grpc").body(()).expect("valid");
                    let mut stream = respond.send_response(head, false).expect("sent");
                    let status = status.load(SeqCst) as u8;
                    stream.send_data(Bytes::copy_from_slice(&[0, 0, 0, 0, 2, 8, status]), false).expect("sent");
                    let mut trailers = HeaderMap::new();
                    trailers.insert("grpc-status", HeaderValue::from_static("0"));
                    stream.send_trailers(trailers).expect("sent");
                });
            }
        }
    })
}

#[test]
fn grpc_services_are_checked_by_the_grpc_health_protocol() {
    let (status, asked) = (Arc::new(AtomicUsize::new(2)), Arc::default());
    let pod = grpc_pod(Arc::clone(&status), Arc::clone(&asked));
    let grpc = [("backend-protocol", "GRPC"), ("health-check", "grpc"), ("health-check-service", "shop.Cart")];
    let site = checked(&grpc, &[pod]);
    wait_for_unhealthy(&site, 1);
    status.store(1, SeqCst);
    wait_for_unhealthy(&site, 0);
    let (fields, message) = asked.lock().expect("unpoisoned")[0].clone();
    assert_eq!(fields, "POST /grpc.health.v1.Health/Check Some(\"application/grpc\")");
    assert_eq!(message, &b"\0\0\0\0\x0b\x0a\x09shop.Cart"[..]);
    // A check by HTTP over HTTP/2 is judged by its HTTP status.
    let site = checked(&[("backend-protocol", "GRPC"), ("health-check-path", "/x")], &[pod]);
    wait_until("a check passes", || view(&site.proxy).is_some_and(|view| view.checks[0] > 1));
    let other = Ingress::with(&[("health-check", "grpc")]).serve_from(&[pod]);
    assert!(other.outcomes.contains("IneffectiveAnnotation"), "{}", other.outcomes);
}

/// A pod that holds each request until it is released, and the number it holds.
fn holding(go: &Arc<AtomicBool>) -> (Origin, Arc<AtomicUsize>) {
    let (go, held) = (Arc::clone(go), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&held);
    let origin = Origin::start(move |peer| {
        while peer.request().is_some() {
            count.fetch_add(1, SeqCst);
            while !go.load(SeqCst) {
                thread::park_timeout(std::time::Duration::from_millis(1));
            }
            count.fetch_sub(1, SeqCst);
            peer.answer("pod");
        }
    });
    (origin, held)
}

fn begin(site: &Site, count: usize) -> Vec<Client> {
    let ask = |_| {
        let mut client = site.client();
        client.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
        client
    };
    (0..count).map(ask).collect()
}

fn refused(site: &Site) -> [u64; 4] {
    view(&site.proxy).map_or([0; 4], |view| view.refused)
}

#[test]
fn requests_over_a_circuit_breaker_limit_get_503_at_once() {
    for (annotation, reason, expect) in [
        ("max-connections", "the backend takes no more requests", [2, 0, 0, 0]),
        ("max-requests", "no backend has room", [0, 0, 0, 2]),
    ] {
        let go = Arc::new(AtomicBool::new(false));
        let (pod, held) = holding(&go);
        let site = Ingress::with(&[(annotation, "3")]).serve(&pod).in_order();
        let mut under_way = begin(&site, 3);
        wait_until("three are there", || held.load(SeqCst) == 3);
        for _ in 0..2 {
            let response = site.get("/");
            assert_eq!(response.status, 503, "{annotation}");
            assert!(response.text().contains(reason), "{}", response.text());
        }
        assert_eq!((refused(&site), held.load(SeqCst)), (expect, 3), "{annotation}");
        go.store(true, SeqCst);
        assert!(under_way.iter_mut().all(|client| client.response().status == 200));
        assert_eq!(site.get("/").status, 200, "there is room again");
    }
}

#[test]
fn pending_requests_may_wait() {
    let go = Arc::new(AtomicBool::new(false));
    let (pod, held) = holding(&go);
    let site = Ingress::with(&[("max-connections", "2"), ("max-pending-requests", "2")]).serve(&pod).in_order();
    let mut clients = begin(&site, 2);
    wait_until("two are there", || held.load(SeqCst) == 2);
    clients.extend(begin(&site, 3));
    // Of three more, two wait.
    wait_until("one is refused", || refused(&site) == [0, 1, 0, 0]);
    assert_eq!(held.load(SeqCst), 2);
    go.store(true, SeqCst);
    let statuses: Vec<_> = clients.iter_mut().map(|client| client.response().status).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 4, "{statuses:?}");
    go.store(false, SeqCst);
    // No request waits longer than the connect time-out.
    let short = [("max-connections", "1"), ("max-pending-requests", "9"), ("proxy-connect-timeout", "1")];
    let (pod, held) = holding(&go);
    let site = Ingress::with(&short).serve(&pod).in_order();
    let _first = begin(&site, 1);
    wait_until("it is there", || held.load(SeqCst) == 1);
    assert_eq!((site.get("/").status, refused(&site)), (503, [0, 0, 1, 0]));
    go.store(true, SeqCst);
}

#[test]
fn circuit_breaker_limits_hold_under_load() {
    let (under_way, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (count, highest) = (Arc::clone(&under_way), Arc::clone(&most));
    let pod = Origin::start(move |peer| {
        while peer.request().is_some() {
            highest.fetch_max(count.fetch_add(1, SeqCst) + 1, SeqCst);
            thread::yield_now();
            count.fetch_sub(1, SeqCst);
            peer.answer("pod");
        }
    });
    let site = Ingress::with(&[("max-connections", "4"), ("max-pending-requests", "1000")]).serve(&pod).in_order();
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let mut client = site.client();
                assert!((0..50).all(|_| client.get("a.test", "/").status == 200));
            });
        }
    });
    assert!(most.load(Relaxed) <= 4, "{most:?}");
    assert_eq!(refused(&site), [0; 4]);
}

#[test]
fn a_new_pod_starts_slowly() {
    let pods = [Origin::answering("a"), Origin::answering("b")];
    let new = Origin::answering("new");
    let serve = |time: &str| {
        let ingress = Ingress::with(&[("slow-start", time)]);
        let site = ingress.serve_from(&addresses(&[&pods[0], &pods[1]])).in_order();
        let more = ingress.translated(&addresses(&[&pods[0], &pods[1], &new]), &Options::for_manifests()).0;
        site.proxy.publish(&more);
        site
    };
    let share = |site: &Site| (0..300).filter(|_| site.get("/").text() == "new").count();
    // Of an hour next to nothing has passed, of a millisecond all.
    assert!(share(&serve("60m")) < 10);
    let site = serve("1ms");
    wait_until("it has come", || site.get("/").text() == "new");
    assert!(share(&site) >= 99);
}

#[test]
fn invalid_values_are_reported_and_ignored() {
    let pod = Origin::answering("pod");
    for (key, value) in
        [("max-requests", "0"), ("eject-share", "101"), ("health-check-path", "healthz"), ("slow-start", "-1")]
    {
        let site = Ingress::with(&[(key, value)]).serve(&pod);
        assert_eq!(site.get("/").text(), "pod", "{key}");
        assert!(site.outcomes.contains("InvalidAnnotation") && site.outcomes.contains(key), "{}", site.outcomes);
    }
}

#[test]
fn one_service_may_have_two_health_policies() {
    let (pod, other) = (Origin::answering("pod"), super::pods_tls::another("b.test", &[("max-requests", "9")]));
    let site = Ingress::with(&[("max-requests", "5")]).beside(&other).serve(&pod).in_order();
    assert_eq!((site.get("/").status, site.client().get("b.test", "/").status), (200, 200));
}

#[test]
fn excess_checks_are_delayed_and_counted() {
    let delayed = |site: &Site| site.proxy.shared.stats().checks_delayed;
    // The ports are closed: each check is over at once.
    let pods = |count: u16| -> Vec<SocketAddr> {
        (0..count)
            .map(|pod| SocketAddr::from(([127, 77, u8::try_from(pod / 250).unwrap_or(0), 1], 1 + pod % 250)))
            .collect()
    };
    let many = Ingress::with(&[&[("health-check", "tcp")], &FAST[..]].concat()).serve_from(&pods(600));
    assert!(many.outcomes.starts_with("warning HealthChecksDelayed Ingress default/web"), "{}", many.outcomes);
    wait_until("checks come later than asked for", || delayed(&many) > 0);
    let few = checked(&[("health-check", "tcp")], &pods(20));
    let asked = || few.proxy.shared.upstreams().iter().map(|view| view.checks.iter().sum::<u64>()).sum::<u64>();
    wait_until("checks are made", || asked() > 20);
    assert_eq!(delayed(&few), 0);
}
