//! Tests of watches of Namespaces.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_namespace_deletion_is_reported_when_it_is_requested() {
    let server = server();
    server.answer("stream ingresses", 200, bookmark("Ingress", "networking.k8s.io/v1"));
    let namespace = |version: u64, deleted: &str| {
        format!(
            r#"{{"apiVersion":"v1","kind":"Namespace","metadata":{{"name":"n","resourceVersion":"{version}"{deleted}}}}}"#
        )
    };
    let act = async |number| {
        if number == 1 {
            let deleted = r#","deletionTimestamp":"2026-01-01T00:00:05Z""#;
            let events = event("ADDED", &namespace(2000, "")) + &event("MODIFIED", &namespace(2001, deleted));
            server.answer("watch namespaces", 200, events + &event("DELETED", &namespace(2002, deleted)));
        }
    };
    check_batches(&server, &[&[], &["+Namespace n", "+Namespace n", "-Namespace n"]], act).await;
}

#[tokio::test(start_paused = true)]
async fn forbidden_namespaces_delay_nothing() {
    let server = Arc::new(Server::default());
    server
        .answer("stream ingressclasses", 200, bookmark("IngressClass", "networking.k8s.io/v1"))
        .answer("stream services", 200, bookmark("Service", "v1"))
        .answer("stream nodes", 200, bookmark("Node", "v1"))
        .answer("stream endpointslices", 200, bookmark("EndpointSlice", "discovery.k8s.io/v1"))
        .answer("stream namespaces", 403, status(403))
        .answer("stream gatewayclasses", 404, status(404))
        .answer("stream referencegrants", 200, bookmark("ReferenceGrant", "gateway.networking.k8s.io/v1"))
        .answer("stream ingresses", 422, status(422))
        .answer("list ingresses", 200, list("Ingress", &[object("Ingress", "a", "")]));
    let began = Instant::now();
    check(&server, 1, &["+Ingress n/a"]).await;
    assert!(began.elapsed() < MAX_HOLD, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn references_from_unselected_namespaces_are_not_watched() {
    let server = server();
    let of = |namespace: &str, secret: &str| {
        let ingress = object("Ingress", "a", &format!(r#","spec":{{"tls":[{{"secretName":"{secret}"}}]}}"#));
        event("ADDED", &ingress.replace(r#""namespace":"n""#, &format!(r#""namespace":"{namespace}""#)))
    };
    let namespace = r#"{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"n","resourceVersion":"7"}}"#;
    server
        .answer("stream ingresses", 200, of("n", "s") + &of("m", "t") + &bookmark("Ingress", "networking.k8s.io/v1"))
        .answer("stream namespaces?team%3Dshop", 200, event("ADDED", namespace) + &bookmark("Namespace", "v1"))
        .answer("stream secrets/s", 200, event("ADDED", &object("Secret", "s", "")) + &bookmark("Secret", "v1"));
    let (sender, mut batches) = crate::source::queue();
    let options = translate::Options { selects_namespaces: true, ..options() };
    let scope = Scope { namespace: None, selector: Some("team=shop") };
    let began = Instant::now();
    let mut received = tokio::select! {
        () = watch_with_client(server.client(), scope, &options, sender) => panic!("the source ended"),
        batch = batches.recv() => batch.expect("a batch").changes.into_iter().map(describe).collect::<Vec<_>>(),
    };
    received.sort();
    assert_eq!(received, ["+Ingress m/a", "+Ingress n/a", "+Namespace n", "+Secret n/s"]);
    assert!(began.elapsed() < MAX_HOLD, "something else is waited for");
}
