//! Tests of a kind that an API server may not know.

use super::*;

const GRANTS: &str = "gateway.networking.k8s.io/v1";

/// Returns a server with all kinds except grants.
fn server_without_grants() -> Arc<Server> {
    let server = server();
    server.answer("stream ingresses", 200, bookmark("Ingress", "networking.k8s.io/v1"));
    server.script.lock().expect("no panic").remove("stream referencegrants");
    server
}

#[tokio::test(start_paused = true)]
async fn grants_are_reported_when_added_and_removed() {
    let server = server_without_grants();
    let grant = object("ReferenceGrant", "g", "");
    server.answer("stream referencegrants", 200, event("ADDED", &grant) + &bookmark("ReferenceGrant", GRANTS));
    let act = async |number| {
        if number == 1 {
            let gone = object("ReferenceGrant", "g", "");
            server.answer("watch referencegrants", 200, event("DELETED", &gone));
        }
    };
    check_batches(&server, &[&["+ReferenceGrant n/g"], &["-ReferenceGrant n/g"]], act).await;
}

#[tokio::test(start_paused = true)]
async fn grants_are_watched_in_the_older_api_version_if_needed() {
    let server = server_without_grants();
    let listed = event("ADDED", &object("ReferenceGrant", "g", "")) + &bookmark("ReferenceGrant", GRANTS);
    server.answer("stream referencegrants", 404, status(404)).answer("stream beta:referencegrants", 200, listed);
    check_batches(&server, &[&["+ReferenceGrant n/g"]], async |_| {}).await;
}

#[tokio::test(start_paused = true)]
async fn a_missing_kind_delays_nothing_and_is_retried() {
    let server = server_without_grants();
    let listed = event("ADDED", &object("ReferenceGrant", "g", "")) + &bookmark("ReferenceGrant", GRANTS);
    let began = Instant::now();
    for _ in 0..2 {
        server.answer("stream referencegrants", 404, status(404));
        server.answer("stream beta:referencegrants", 404, status(404));
    }
    server.answer("stream referencegrants", 200, listed);
    let act = async |number| match number {
        0 => {}
        _ => assert!(began.elapsed().is_zero(), "the first batch waited for {:?}", began.elapsed()),
    };
    check_batches(&server, &[&[], &["+ReferenceGrant n/g"]], act).await;
    let seconds = began.elapsed().as_secs_f64();
    assert!((2.4..5.0).contains(&seconds), "asked again after {seconds} s");
}

/// A new API server is just starting beside others, in a cluster that got the Gateway API later than this process.
#[tokio::test(start_paused = true)]
async fn grants_survive_a_brief_absence_of_their_kind() {
    let server = server_without_grants();
    let listed = || event("ADDED", &object("ReferenceGrant", "g", "")) + &bookmark("ReferenceGrant", GRANTS);
    let is_unknown = || {
        server.answer("stream referencegrants", 404, status(404));
        server.answer("stream beta:referencegrants", 404, status(404));
    };
    is_unknown();
    server.answer("stream referencegrants", 200, listed());
    let act = async |number| {
        if number == 2 {
            server.answer("watch referencegrants", 404, status(404));
            server.answer("stream beta:referencegrants", 404, status(404));
            server.answer("stream referencegrants", 200, listed());
        }
    };
    check_batches(&server, &[&[], &["+ReferenceGrant n/g"], &["+ReferenceGrant n/g"]], act).await;
}

/// The Gateway API is removed from a cluster while a watch is down, so no event reports the removal of the grants.
#[tokio::test(start_paused = true)]
async fn grants_are_removed_with_their_kind() {
    let server = server_without_grants();
    let listed = event("ADDED", &object("ReferenceGrant", "g", "")) + &bookmark("ReferenceGrant", GRANTS);
    server.answer("stream referencegrants", 200, listed);
    let began = Mutex::new(None);
    let act = async |number| {
        if number == 1 {
            *began.lock().expect("no panic") = Some(Instant::now());
            server.answer("watch referencegrants", 404, status(404));
            for _ in 0..12 {
                server.answer("stream referencegrants", 404, status(404));
                server.answer("stream beta:referencegrants", 404, status(404));
            }
        }
    };
    check_batches(&server, &[&["+ReferenceGrant n/g"], &["-ReferenceGrant n/g"]], act).await;
    let waited = began.lock().expect("no panic").expect("it began").elapsed();
    assert!((60..121).contains(&waited.as_secs()), "believed after {waited:?}, as of a server that was just starting");
}
