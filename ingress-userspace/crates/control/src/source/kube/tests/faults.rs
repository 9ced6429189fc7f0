//! Tests of the source against servers that fail, forget, repeat themselves or go away.

use super::*;

#[tokio::test(start_paused = true)]
async fn objects_are_removed_only_by_a_complete_list() {
    let server = server();
    let (a, b) = (object("Ingress", "a", ""), object("Ingress", "b", ""));
    server
        .answer("stream ingresses", 422, status(422))
        .answer("list ingresses", 200, list("Ingress", &[a, b.clone()]))
        // Status 410 (Gone): the watch cannot be resumed, so everything is listed again.
        .answer("watch ingresses", 200, event("ERROR", &status(410)))
        .answer("list ingresses", 500, status(500))
        .answer("list ingresses", 200, list("Ingress", &[b]))
        .answer("watch ingresses", 200, event("MODIFIED", &object("Ingress", "a", "")));
    let expect = ["+Ingress n/a", "+Ingress n/b", "+Ingress n/b", "-Ingress n/a", "+Ingress n/a"];
    check(&server, 2, &expect).await;
}

/// Follows a server that reports `a` and `b`, and then the script of `act`. Compares the changes after the first list.
async fn check_after_the_first_list(act: impl Fn(&Server), expect: &[&str]) {
    let server = server();
    let both = [object("Ingress", "a", ""), object("Ingress", "b", "")];
    server.answer("stream ingresses", 422, status(422)).answer("list ingresses", 200, list("Ingress", &both));
    act(&server);
    let (sender, mut batches) = crate::source::queue();
    let options = options();
    let source = watch_with_client(server.client(), Scope::default(), &options, sender);
    let compare = async {
        let mut received = Vec::new();
        // All pauses together are shorter, and the clock is a simulated one.
        while let Ok(batch) = timeout(Duration::from_secs(3600), batches.recv()).await {
            received.extend(batch.expect("the source goes on").changes.into_iter().map(describe));
        }
        assert_eq!(received[..2], ["+Ingress n/a", "+Ingress n/b"]);
        assert_eq!(received[2..], *expect);
    };
    tokio::select! {
        () = source => panic!("the source ended"),
        () = compare => {}
    }
}

#[tokio::test(start_paused = true)]
async fn an_empty_list_after_an_error_needs_a_second_one() {
    let gone = |server: &Server| {
        server.answer("watch ingresses", 200, event("ERROR", &status(410)));
        server.answer("list ingresses", 200, list("Ingress", &[]));
    };
    check_after_the_first_list(gone, &[]).await;
    let again = |server: &Server| {
        gone(server);
        server.answer("list ingresses", 500, status(500)).answer("list ingresses", 200, list("Ingress", &[]));
    };
    check_after_the_first_list(again, &[]).await;
    let confirmed = |server: &Server| {
        gone(server);
        server.answer("list ingresses", 200, list("Ingress", &[]));
    };
    check_after_the_first_list(confirmed, &["-Ingress n/a", "-Ingress n/b"]).await;
    let back = |server: &Server| {
        gone(server);
        server.answer("list ingresses", 200, list("Ingress", &[object("Ingress", "b", "")]));
    };
    check_after_the_first_list(back, &["+Ingress n/b", "-Ingress n/a"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_long_outage_removes_nothing_and_later_changes_arrive() {
    let away = |server: &Server| {
        for _ in 0..30 {
            server.answer("watch ingresses", 503, status(503));
        }
    };
    check_after_the_first_list(away, &[]).await;
    let back = |server: &Server| {
        away(server);
        let changed = [object("Ingress", "b", ""), object("Ingress", "c", "")];
        server.answer("watch ingresses", 410, status(410)).answer("stream ingresses", 422, status(422));
        server.answer("list ingresses", 200, list("Ingress", &changed));
    };
    check_after_the_first_list(back, &["+Ingress n/b", "+Ingress n/c", "-Ingress n/a"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_restored_from_a_backup_is_listed_again() {
    let put_back = |server: &Server| {
        let ahead = status(504).replace("scripted", "Too large resource version: 9, current: 5");
        server.answer("watch ingresses", 504, ahead);
        server.answer("list ingresses", 200, list("Ingress", &[object_at(5, "Ingress", "b", "")]));
        // Newer than the list, though older than the version known before.
        server.answer("watch ingresses", 200, event("MODIFIED", &object_at(6, "Ingress", "b", "")));
    };
    check_after_the_first_list(put_back, &["+Ingress n/b", "-Ingress n/a", "+Ingress n/b"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_broken_list_is_restarted() {
    let end = bookmark("Ingress", "networking.k8s.io/v1");
    let one = || event("ADDED", &object("Ingress", "a", ""));
    for broken in
        [one(), one() + &event("ERROR", &status(500)) + &end, one() + "{\"type\":\"ADDED\",\"object\":7}\n" + &end]
    {
        let server = server();
        server.answer("stream ingresses", 200, broken);
        let both = one() + &event("ADDED", &object("Ingress", "b", "")) + &end;
        server.answer("stream ingresses", 200, both);
        check_batches(&server, &[&["+Ingress n/a", "+Ingress n/a", "+Ingress n/b"]], async |_| {}).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_read_stops_no_other() {
    let server = server();
    let unlike = event("ADDED", &object("Ingress", "c", r#","spec":7"#));
    let a = event("ADDED", &object("Ingress", "a", ""));
    server.answer("stream ingresses", 200, unlike + &a + &bookmark("Ingress", "networking.k8s.io/v1"));
    check_batches(&server, &[&["+Ingress n/a"]], async |_| {}).await;
}

#[tokio::test(start_paused = true)]
async fn an_object_that_can_no_longer_be_read_stays_until_it_is_deleted() {
    let unlike = || object("Ingress", "a", r#","spec":7"#);
    let listed_again = |server: &Server| {
        server
            .answer("watch ingresses", 200, event("ERROR", &status(410)))
            .answer("list ingresses", 200, list("Ingress", &[unlike(), object("Ingress", "b", "")]))
            .answer("watch ingresses", 200, event("DELETED", &object("Ingress", "b", "")));
    };
    check_after_the_first_list(listed_again, &["+Ingress n/b", "-Ingress n/b"]).await;
    let changed = |server: &Server| {
        let events = event("MODIFIED", &unlike()) + &event("DELETED", &object("Ingress", "b", ""));
        server.answer("watch ingresses", 200, events);
    };
    check_after_the_first_list(changed, &["-Ingress n/b"]).await;
    let deleted = |server: &Server| {
        server.answer("watch ingresses", 200, event("MODIFIED", &unlike()) + &event("DELETED", &unlike()));
    };
    check_after_the_first_list(deleted, &["-Ingress n/a"]).await;
}

#[tokio::test(start_paused = true)]
async fn an_event_without_an_object_is_skipped_after_the_list() {
    let act = |server: &Server| {
        let later = event("DELETED", &object("Ingress", "b", ""));
        server.answer("watch ingresses", 200, "{\"type\":\"ADDED\",\"object\":7}\n".to_owned() + &later);
    };
    check_after_the_first_list(act, &["-Ingress n/b"]).await;
}

#[tokio::test(start_paused = true)]
async fn bookmarks_count_as_contact_but_not_as_changes() {
    let server = server();
    server.answer("stream ingresses", 200, bookmark("Ingress", "networking.k8s.io/v1"));
    let contact = Contact::default();
    contact.begin(None);
    let inner = {
        let server = Arc::clone(&server);
        tower::service_fn(move |request: Request<Body>| {
            let server = Arc::clone(&server);
            async move {
                let (status, body) = server.next(Server::describe(&request)).await;
                Response::builder().status(status).body(Body::from(body.into_bytes()))
            }
        })
    };
    let notes = client::Notes { contact: contact.clone() };
    let client = kube::client::ClientBuilder::new(inner, "default").with_layer(&notes).build();
    let (sender, mut batches) = crate::source::queue();
    let options = options();
    let compare = async {
        sleep(Duration::from_secs(5)).await;
        assert!(batches.recv().await.expect("the first").changes.is_empty());
        assert_eq!(contact.age().map(|age| age.as_secs()), Some(5));
        for kind in ["ingressclasses", "services", "endpointslices"] {
            server.answer(&format!("watch {kind}"), 200, plain_bookmark(kind));
        }
        // An error does not count as a sign of life.
        server.answer("watch ingresses", 500, status(500));
        sleep(Duration::from_millis(100)).await;
        assert_eq!(contact.age().map(|age| age.as_secs()), Some(5));
        server.answer("watch ingresses", 200, plain_bookmark("ingresses"));
        sleep(Duration::from_secs(2)).await;
        assert!(contact.age() < Some(Duration::from_secs(3)));
        assert!(batches.try_recv().is_err(), "a bookmark changes nothing");
    };
    tokio::select! {
        () = watch_with_client(client, Scope::default(), &options, sender) => panic!("the source ended"),
        () = compare => {}
    }
}

fn plain_bookmark(plural: &str) -> String {
    let (kind, version) = match plural {
        "ingresses" => ("Ingress", "networking.k8s.io/v1"),
        "ingressclasses" => ("IngressClass", "networking.k8s.io/v1"),
        "services" => ("Service", "v1"),
        _ => ("EndpointSlice", "discovery.k8s.io/v1"),
    };
    let object = format!(r#"{{"apiVersion":"{version}","kind":"{kind}","metadata":{{"resourceVersion":"12"}}}}"#);
    event("BOOKMARK", &object)
}

#[test]
fn duplicate_and_stale_events_change_nothing() {
    let mut tracker = Tracker::new(&options(), BTreeSet::new());
    let id = tracker.open(Need::Required);
    let a = || parse(&object("Ingress", "a", ""));
    let b = || parse(&object("Ingress", "b", ""));
    let version = |version: u64| Version::of(Some(&version.to_string()));
    for (event, expect) in [
        (TrackerEvent::ListBegins, 0),
        (TrackerEvent::Listed(a(), version(5)), 1),
        (TrackerEvent::Listed(b(), version(9)), 1),
        (TrackerEvent::ListEnds, 0),
        (TrackerEvent::Applied(a(), version(5)), 0),
        (TrackerEvent::Applied(a(), version(12)), 1),
        (TrackerEvent::Applied(a(), version(12)), 0),
        (TrackerEvent::Applied(b(), version(11)), 0),
        (TrackerEvent::Deleted(a().id(), version(10)), 0),
        (TrackerEvent::Deleted(a().id(), version(13)), 1),
        // It does not rise again.
        (TrackerEvent::Applied(a(), version(12)), 0),
        (TrackerEvent::Applied(a(), version(14)), 1),
        // Some servers report the deletion of an object with its last version.
        (TrackerEvent::Deleted(a().id(), version(14)), 1),
        (TrackerEvent::Applied(b(), Version::of(Some("opaque"))), 1),
    ] {
        let received = tracker.on(id, event.clone()).len();
        assert_eq!(received, expect, "{event:?}");
    }
}
