//! Tests of the kinds of the Gateway API, which a cluster may lack.

use super::*;

const API: &str = "gateway.networking.k8s.io/v1";

/// Resource and kind of all objects that wait for a GatewayClass.
const BEHIND: [(&str, &str); 8] = [
    ("gateways", "Gateway"),
    ("listenersets", "ListenerSet"),
    ("httproutes", "HTTPRoute"),
    ("grpcroutes", "GRPCRoute"),
    ("tlsroutes", "TLSRoute"),
    ("tcproutes", "TCPRoute"),
    ("udproutes", "UDPRoute"),
    ("backendtlspolicies", "BackendTLSPolicy"),
];

/// Returns a server that says nothing about GatewayClasses, and holds none of the other kinds.
fn server_with_kinds() -> Arc<Server> {
    let server = server();
    server.answer("stream ingresses", 200, bookmark("Ingress", "networking.k8s.io/v1"));
    server.script.lock().expect("no panic").remove("stream gatewayclasses");
    for (resource, kind) in BEHIND {
        server.answer(&format!("stream {resource}"), 200, bookmark(kind, API));
    }
    server
}

/// Replaces the first list of `resource`.
fn list_instead(server: &Server, resource: &str, kind: &str, objects: &[String]) {
    let request = format!("stream {resource}");
    server.script.lock().expect("no panic").remove(&request);
    let listed: String = objects.iter().map(|object| event("ADDED", object)).collect();
    server.answer(&request, 200, listed + &bookmark(kind, API));
}

fn class(name: &str, controller: &str) -> String {
    let text = object("GatewayClass", name, &format!(r#","spec":{{"controllerName":"{controller}"}}"#));
    text.replace(r#""namespace":"n","resource"#, r#""resource"#)
}

fn ours() -> String {
    class("xdp", "xdp-ingress.io/gateway-controller")
}

/// Returns the Gateway `g`, whose listener names a Secret.
fn gateway(class: &str, secret: &str) -> String {
    let tls = format!(r#"{{"certificateRefs":[{{"name":"{secret}"}}]}}"#);
    let listener = format!(r#"{{"name":"l","port":443,"protocol":"HTTPS","tls":{tls}}}"#);
    object("Gateway", "g", &format!(r#","spec":{{"gatewayClassName":"{class}","listeners":[{listener}]}}"#))
}

fn found(kind: &str, name: &str) -> String {
    event("ADDED", &object(kind, name, "")) + &bookmark(kind, "v1")
}

/// Returns the requests of the script that the source has not made.
fn unasked(server: &Server) -> Vec<String> {
    let script = server.script.lock().expect("no panic");
    let mut unasked: Vec<_> =
        script.iter().filter(|(_, left)| !left.is_empty()).map(|(request, _)| request.clone()).collect();
    unasked.sort();
    unasked
}

fn all_behind() -> Vec<String> {
    let mut requests: Vec<_> = BEHIND.iter().map(|(resource, _)| format!("stream {resource}")).collect();
    requests.sort();
    requests
}

#[tokio::test(start_paused = true)]
async fn gateways_come_with_the_secrets_that_they_name() {
    let server = server_with_kinds();
    list_instead(&server, "gatewayclasses", "GatewayClass", &[ours()]);
    list_instead(&server, "gateways", "Gateway", &[gateway("xdp", "s")]);
    let set = r#","spec":{"parentRef":{"name":"g"},"listeners":[{"tls":{"certificateRefs":[{"name":"of-set"}]}}]}"#;
    list_instead(&server, "listenersets", "ListenerSet", &[object("ListenerSet", "l", set)]);
    server.answer("stream secrets/s", 200, found("Secret", "s"));
    server.answer("stream secrets/of-set", 200, found("Secret", "of-set"));
    server.answer("stream secrets/t", 200, found("Secret", "t"));
    let act = async |number| match number {
        1 => drop(server.answer("watch gateways", 200, event("MODIFIED", &gateway("xdp", "t")))),
        2 => drop(server.answer("watch gateways", 200, event("MODIFIED", &gateway("other", "t")))),
        _ => {}
    };
    let (sender, mut batches) = crate::source::queue();
    let options = options();
    let compare = async {
        let expect: [&[&str]; 3] = [
            &["+Gateway n/g", "+GatewayClass xdp", "+ListenerSet n/l", "+Secret n/of-set", "+Secret n/s"],
            &["+Gateway n/g", "+Secret n/t", "-Secret n/s"],
            &["+Gateway n/g", "-Secret n/of-set", "-Secret n/t"],
        ];
        for (number, expect) in expect.into_iter().enumerate() {
            act(number).await;
            let batch = timeout(MAX_HOLD / 2, batches.recv()).await.expect("in time").expect("a batch");
            let mut changes: Vec<_> = batch.changes.into_iter().map(describe).collect();
            changes.sort();
            assert_eq!(changes, expect, "batch {number}");
        }
    };
    tokio::select! {
        () = watch_with_client(server.client(), Scope::default(), &options, sender) => panic!("the source ended"),
        () = compare => {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_gateway_api_delays_nothing_and_is_found_later() {
    let server = server_with_kinds();
    server.answer("stream gatewayclasses", 404, status(404)).answer("stream gatewayclasses", 404, status(404));
    list_instead(&server, "gateways", "Gateway", &[gateway("xdp", "s")]);
    server.answer("stream secrets/s", 200, found("Secret", "s"));
    let began = Instant::now();
    let act = async |number| {
        if number == 1 {
            assert!(began.elapsed().is_zero(), "the first batch waited for {:?}", began.elapsed());
            assert_eq!(unasked(&server).len(), 2 + BEHIND.len(), "{:?}", unasked(&server));
            sleep(Duration::from_secs(10)).await;
            server.answer("stream gatewayclasses", 200, event("ADDED", &ours()) + &bookmark("GatewayClass", API));
        }
    };
    check_batches(&server, &[&[], &["+GatewayClass xdp"], &["+Gateway n/g", "+Secret n/s"]], act).await;
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}

/// The roles of an earlier release lack the kinds; an authorizer refuses a kind even if the server does not know it.
#[tokio::test(start_paused = true)]
async fn refused_gateway_classes_delay_nothing_and_are_asked_for_again() {
    let server = server_with_kinds();
    server.answer("stream gatewayclasses", 403, status(403)).answer("stream gatewayclasses", 403, status(403));
    server.answer("stream gatewayclasses", 200, event("ADDED", &ours()) + &bookmark("GatewayClass", API));
    let began = Instant::now();
    let act = async |number| {
        if number == 1 {
            assert!(began.elapsed().is_zero(), "the first batch waited for {:?}", began.elapsed());
        }
    };
    check_batches(&server, &[&[], &["+GatewayClass xdp"]], act).await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

/// A process that starts would drop the saved routes if it went on without them.
#[tokio::test(start_paused = true)]
async fn the_first_batch_waits_for_slow_lists() {
    for slow in ["gatewayclasses", "httproutes", "secrets/s"] {
        let server = server_with_kinds();
        let route = object("HTTPRoute", "r", "");
        let mut lists = vec![
            ("gatewayclasses", event("ADDED", &ours()) + &bookmark("GatewayClass", API)),
            ("gateways", event("ADDED", &gateway("xdp", "s")) + &bookmark("Gateway", API)),
            ("httproutes", event("ADDED", &route) + &bookmark("HTTPRoute", API)),
            ("secrets/s", found("Secret", "s")),
        ];
        for (resource, _) in &lists {
            server.script.lock().expect("no panic").remove(&format!("stream {resource}"));
        }
        let late = lists.extract_if(.., |(resource, _)| *resource == slow).collect::<Vec<_>>();
        for (resource, list) in lists {
            server.answer(&format!("stream {resource}"), 200, list);
        }
        // A Secret is waited for no longer than MAX_HOLD.
        let pause = if slow == "secrets/s" { MAX_HOLD / 2 } else { MAX_HOLD * 3 };
        let (sender, mut batches) = crate::source::queue();
        let (options, began) = (options(), Instant::now());
        let compare = async {
            sleep(pause).await;
            for (resource, list) in late {
                server.answer(&format!("stream {resource}"), 200, list);
            }
            let batch = batches.recv().await.expect("a batch");
            let mut changes: Vec<_> = batch.changes.into_iter().map(describe).collect();
            changes.sort();
            assert_eq!(changes, ["+Gateway n/g", "+GatewayClass xdp", "+HTTPRoute n/r", "+Secret n/s"], "{slow}");
            assert_eq!((began.elapsed(), batch.unread), (pause, Vec::new()), "{slow}");
        };
        tokio::select! {
            () = watch_with_client(server.client(), Scope::default(), &options, sender) => panic!("the source ended"),
            () = compare => {}
        }
    }
}

/// As of a kind whose objects the server cannot convert any more.
#[tokio::test(start_paused = true)]
async fn a_list_that_never_comes_holds_ingresses_back_for_a_limited_time() {
    let server = server_with_kinds();
    list_instead(&server, "gatewayclasses", "GatewayClass", &[ours()]);
    server.script.lock().expect("no panic").remove("stream httproutes");
    for _ in 0..9 {
        server.answer("stream httproutes", 500, status(500));
    }
    let began = Instant::now();
    let act = async |number| {
        if number == 1 {
            assert_eq!(began.elapsed(), MAX_ANSWER);
            list_instead(&server, "httproutes", "HTTPRoute", &[object("HTTPRoute", "r", "")]);
        }
    };
    check_batches(&server, &[&["+GatewayClass xdp"], &["+HTTPRoute n/r"]], act).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_of_other_controllers_is_watched() {
    let server = server_with_kinds();
    list_instead(&server, "gatewayclasses", "GatewayClass", &[class("other", "acme.test/controller")]);
    let act = async |number| {
        if number == 1 {
            sleep(Duration::from_secs(300)).await;
            assert_eq!(unasked(&server), all_behind());
            server.answer("watch gatewayclasses", 200, event("ADDED", &ours()));
            sleep(Duration::from_secs(1)).await;
            assert!(unasked(&server).is_empty());
        }
    };
    check_batches(&server, &[&["+GatewayClass other"], &["+GatewayClass xdp"]], act).await;
}

#[tokio::test(start_paused = true)]
async fn a_single_missing_or_refused_kind_delays_no_other() {
    let server = server_with_kinds();
    list_instead(&server, "gatewayclasses", "GatewayClass", &[ours()]);
    for (resource, code) in [("listenersets", 404), ("tlsroutes", 403)] {
        let request = format!("stream {resource}");
        server.script.lock().expect("no panic").remove(&request);
        server.answer(&request, code, status(code));
    }
    let began = Instant::now();
    let act = async |number| {
        if number == 1 {
            assert!(began.elapsed().is_zero(), "the first batch waited for {:?}", began.elapsed());
            list_instead(&server, "listenersets", "ListenerSet", &[object("ListenerSet", "l", "")]);
        }
    };
    check_batches(&server, &[&["+GatewayClass xdp"], &["+ListenerSet n/l"]], act).await;
}

#[tokio::test(start_paused = true)]
async fn unknown_values_leave_a_list_readable() {
    let server = server_with_kinds();
    list_instead(&server, "gatewayclasses", "GatewayClass", &[ours()]);
    let later = r#","spec":{"rules":[{"filters":[{"type":"Teleport","teleport":{"to":["mars"]}}],"matches":[{"path":{"type":"Glob","value":"/*"}}]}]}"#;
    let routes =
        [object("HTTPRoute", "later", later), object("HTTPRoute", "known", r#","spec":{"hostnames":["a.test"]}"#)];
    list_instead(&server, "httproutes", "HTTPRoute", &routes);
    check_batches(&server, &[&["+GatewayClass xdp", "+HTTPRoute n/later", "+HTTPRoute n/known"]], async |_| {}).await;
}

#[tokio::test(start_paused = true)]
async fn an_ignored_gateway_api_is_not_asked_for() {
    let server = server_with_kinds();
    list_instead(&server, "gatewayclasses", "GatewayClass", &[ours()]);
    let (sender, mut batches) = crate::source::queue();
    let options = translate::Options { gateway_api: GatewayApi::Ignore, ..options() };
    tokio::select! {
        () = watch_with_client(server.client(), Scope::default(), &options, sender) => panic!("the source ended"),
        batch = batches.recv() => assert!(batch.expect("a batch").changes.is_empty()),
    }
    assert_eq!(unasked(&server).len(), 1 + BEHIND.len(), "{:?}", unasked(&server));
}
