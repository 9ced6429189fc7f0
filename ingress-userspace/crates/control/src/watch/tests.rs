//! Tests of the loop with directories, with a saved configuration, and without an API server.

use std::{fs, path::Path, sync::Arc, time::SystemTime};

use tokio::time;

use super::*;
use crate::{
    KubernetesConfig,
    change::{Kind, ObjectName},
    saved,
};

const WEB: &str = "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: web}\n\
    spec:\n  ingressClassName: xdp\n  rules: [{host: HOST, http: {paths: [{path: /, pathType: Prefix, \
    backend: {service: {name: web, port: {number: 80}}}}]}}]\n";

async fn next(published: &mut mpsc::UnboundedReceiver<Translation>) -> String {
    let translation = time::timeout(Duration::from_secs(10), published.recv()).await.expect("in time").expect("more");
    let outcomes = translation.outcomes.keys().map(|outcome| format!("{}\n", outcome.reason));
    translation.table.to_string() + &outcomes.collect::<String>()
}

fn write(root: &Path, name: &str, host: &str) {
    fs::write(root.join(name), WEB.replace("HOST", host)).expect("a file");
}

#[tokio::test]
async fn translations_are_published_until_shutdown() {
    let root = tempfile::TempDir::new().expect("a directory");
    let (sender, mut published) = mpsc::unbounded_channel();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let source = SourceConfig::Manifests(root.path().into());
    let task = tokio::spawn(async move {
        let publish = |translation, _| drop(sender.send(translation));
        run(source, &Options::for_manifests(), publish, async { drop(stopped.await) }).await
    });
    assert_eq!(next(&mut published).await, "", "the first is published even if it is empty");
    write(root.path(), "web.yaml", "a.test");
    let refused = "  /                        -> refuse: no such service  # default/web\nServiceNotFound\n";
    assert_eq!(next(&mut published).await, format!("host a.test\n{refused}"));
    // The same content is written again, so the next publication belongs to the change after it.
    write(root.path(), "web.yaml", "a.test");
    write(root.path(), "web.yaml", "b.test");
    assert_eq!(next(&mut published).await, format!("host b.test\n{refused}"));
    stop.send(()).expect("it runs");
    let ended = time::timeout(Duration::from_secs(10), task).await.expect("in time").expect("no panic");
    assert!(ended.is_ok(), "{ended:?}");
}

#[tokio::test]
async fn a_source_that_cannot_start_is_an_error() {
    let source = SourceConfig::Manifests("/nonexistent".into());
    let result = run(source, &Options::default(), |_, _| panic!("nothing to publish"), std::future::pending()).await;
    assert!(matches!(result, Err(SourceError::Manifests { .. })), "{result:?}");
}

fn object(text: &str) -> Change {
    let path = Path::new("object.yaml").into();
    let parsed = manifests::parse(&path, text);
    let object = parsed.objects.into_iter().next().unwrap_or_else(|| panic!("{:?}", parsed.remarks));
    Change::Apply { object, origin: Origin::Api }
}

fn ours(host: &str) -> Vec<Change> {
    let class = "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: xdp}\n\
        spec: {controller: xdp-ingress.io/controller}\n";
    vec![object(class), object(&WEB.replace("HOST", host))]
}

/// Returns the translation that is published if no further change arrives before the longest delay.
fn in_the_end(state: &mut WatchState) -> Option<Translation> {
    let now = Instant::now();
    state.translate(now).or_else(|| state.translate(now + debounce::MAX_DELAY)).map(|(translation, _)| translation)
}

/// Returns a saved configuration with a route for `host`, and an API server that does not answer.
fn without_a_server(root: &Path, host: &str) -> (SourceConfig, Options) {
    let options = Options {
        saved: Some(saved::File { path: root.join("saved.json"), private_keys: saved::PrivateKeys::Leave }),
        ..Options::default()
    };
    let mut state = WatchState { is_confirmed: true, ..WatchState::new(&options) };
    state.apply(Batch { changes: ours(host), ..Batch::default() });
    state.translate(Instant::now()).expect("a translation");
    let content = state.content(&options).expect("something to save");
    options.saved.as_ref().expect("a file").write(&content, SystemTime::now()).expect("written");
    let kubeconfig = root.join("kubeconfig");
    // Port 9 is the discard port, on which usually no process listens.
    let text = "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n\
        clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}]\nusers: [{name: u, user: {}}]\n";
    fs::write(&kubeconfig, text).expect("written");
    (
        SourceConfig::Kubernetes(KubernetesConfig { kubeconfig: Some(kubeconfig), ..KubernetesConfig::default() }),
        options,
    )
}

#[tokio::test(start_paused = true)]
async fn the_saved_configuration_is_served_until_the_api_server_responds() {
    let root = tempfile::TempDir::new().expect("a directory");
    let (source, options) = without_a_server(root.path(), "a.test");
    let contact = options.contact.clone();
    let (sender, mut published) = mpsc::unbounded_channel();
    let began = Instant::now();
    let publish = |translation, _| drop(sender.send(translation));
    let compare = async {
        let text = next(&mut published).await;
        assert!(text.starts_with("host a.test\n") && text.contains("SavedConfiguration"), "{text}");
        let waited = began.elapsed();
        assert!(waited >= save_scheduler::RESTORE_AFTER && waited < save_scheduler::RESTORE_AFTER * 2, "{waited:?}");
        assert!(contact.serves_saved() && contact.age() >= Some(save_scheduler::RESTORE_AFTER));
    };
    let before = fs::read(root.path().join("saved.json")).expect("a file");
    run(source, &options, publish, compare).await.expect("no error");
    let after = fs::read(root.path().join("saved.json")).expect("a file");
    assert!(before == after, "what was only restored is not saved again");
}

#[tokio::test(start_paused = true)]
async fn a_damaged_file_is_not_served() {
    let root = tempfile::TempDir::new().expect("a directory");
    let (source, options) = without_a_server(root.path(), "a.test");
    let path = root.path().join("saved.json");
    let text = fs::read(&path).expect("a file");
    fs::write(&path, &text[..text.len() / 2]).expect("written");
    let shutdown = time::sleep(Duration::from_secs(60));
    run(source, &options, |_, _| panic!("nothing to publish"), shutdown).await.expect("no error");
}

#[test]
fn the_api_server_replaces_the_saved_configuration() {
    let saved = saved::File { path: "/nonexistent/saved.json".into(), private_keys: saved::PrivateKeys::Leave };
    let options = Options { saved: Some(saved), ..Options::default() };
    let mut restored = Cluster::default();
    let secret = |name| object(&format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}}}\n"));
    for change in ours("saved.test").into_iter().chain([secret("read"), secret("unread")]) {
        restored.apply(change);
    }
    let id = |name| ObjectId { kind: Kind::Secret, name: ObjectName::new("default", name) };
    let (kept, renewed): (Arc<str>, Arc<str>) = ("kept.test".into(), "renewed.test".into());
    let addresses = |last| vec![IpAddr::from([192, 0, 2, last])];
    for name in [&kept, &renewed] {
        restored.apply(Change::Resolve { name: Arc::clone(name), addresses: addresses(1) });
    }
    let restored = Some(Restored { cluster: restored, age: Duration::ZERO });
    let mut state = WatchState { restored, ..WatchState::new(&options) };
    let hosts = |translation: Translation| translation.table.hosts.keys().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(hosts(in_the_end(&mut state).expect("a translation")), ["saved.test"]);
    // Names are resolved anew before the API server answers.
    let changes = vec![Change::Resolve { name: Arc::clone(&renewed), addresses: addresses(2) }];
    state.apply(Batch { changes, ..Batch::default() });
    assert!(!state.is_confirmed);
    assert!(state.content(&options).is_none(), "what was restored is not saved again");

    state.confirm(&[id("unread"), id("new")]);
    let secrets: Vec<_> = state.cluster.secrets.keys().map(|name| &*name.name).collect();
    assert_eq!(secrets, ["unread"], "only what is asked for and not answered may be there as it was");
    state.apply(Batch { changes: ours("live.test"), ..Batch::default() });
    assert_eq!(hosts(in_the_end(&mut state).expect("a translation")), ["live.test"]);
    assert_eq!(state.cluster.resolved, [(kept, addresses(1)), (renewed, addresses(2))].into());
    // Batches without an effect are not translated again.
    state.apply(Batch { changes: ours("live.test"), ..Batch::default() });
    assert!(!state.is_changed);
}

#[tokio::test]
async fn the_configuration_is_saved_after_a_delay_and_at_shutdown() {
    let root = tempfile::TempDir::new().expect("a directory");
    let path = root.path().join("saved.json");
    let file = saved::File { path: path.clone(), private_keys: saved::PrivateKeys::Leave };
    let mut save_scheduler = SaveScheduler::new(Some(file.clone()));
    let options = Options { saved: Some(file), ..Options::default() };
    let mut state = WatchState { is_confirmed: true, ..WatchState::new(&options) };
    save_scheduler.finish(state.content(&options)).await;
    assert!(!path.exists(), "there was nothing to save");
    state.apply(Batch { changes: ours("a.test"), ..Batch::default() });
    state.translate(Instant::now()).expect("a translation");
    save_scheduler.mark();
    assert!(!path.exists());
    save_scheduler.finish(state.content(&options)).await;
    let text = fs::read_to_string(&path).expect("a file");
    assert!(text.contains("a.test"), "{text}");
}

#[test]
fn pending_changes_are_not_saved() {
    let root = tempfile::TempDir::new().expect("a directory");
    let file = saved::File { path: root.path().join("saved.json"), private_keys: saved::PrivateKeys::Leave };
    let options = Options { saved: Some(file.clone()), ..Options::default() };
    let mut state = WatchState { is_confirmed: true, ..WatchState::new(&options) };
    let now = Instant::now();
    state.apply(Batch { changes: ours("a.test"), ..Batch::default() });
    state.translate(now).expect("a translation");
    // The former host is missing.
    state.apply(Batch { changes: ours("b.test"), ..Batch::default() });
    assert!(state.translate(now + Duration::from_secs(1)).is_none());
    file.write(&state.content(&options).expect("something to save"), SystemTime::now()).expect("written");
    let text = fs::read_to_string(&file.path).expect("a file");
    assert!(text.contains("a.test") && !text.contains("b.test"), "{text}");
}

const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {ports: [{port: 80}]}\n";

fn slice(name: &str, endpoints: &str) -> Change {
    let head = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\nports: [{port: 80}]\n";
    let labels = "labels: {kubernetes.io/service-name: web}";
    object(&format!("{head}metadata: {{name: {name}, {labels}}}\nendpoints: [{endpoints}]\n"))
}

#[test]
fn related_changes_are_published_together_and_others_at_once() {
    let mut state = WatchState { is_confirmed: true, ..WatchState::new(&Options::default()) };
    let mut now = Instant::now();
    let mut changes = ours("a.test").into_iter();
    let (class, ingress) = (changes.next().expect("a class"), changes.next().expect("an Ingress"));
    state.apply(Batch { changes: vec![class], ..Batch::default() });
    assert!(state.translate(now).is_some(), "the first is published whatever it says");
    let (one, two) = ("{addresses: [10.0.0.1]}", "{addresses: [10.0.0.2]}");
    let remove = |name: &str| Change::Remove(ObjectId { kind: Kind::Ingress, name: ObjectName::new("default", name) });
    let renamed = object(&WEB.replace("HOST", "a.test").replace("name: web}", "name: web2}"));
    for (case, changes, at_once, in_the_end) in [
        (
            "an Ingress before what it leads to",
            vec![ingress.clone(), object(SERVICE), slice("a", one)],
            &[2][..],
            false,
        ),
        ("another endpoint", vec![slice("a", two)], &[0], false),
        ("endpoints that move to another slice", vec![slice("a", ""), slice("b", one)], &[1], false),
        ("an Ingress under another name", vec![remove("web"), renamed], &[1], false),
        ("no endpoint any more", vec![slice("b", "")], &[], true),
        ("an Ingress that goes", vec![remove("web2")], &[], true),
        ("an Ingress that comes back to the same trouble", vec![ingress], &[], true),
        ("what is there already", vec![slice("b", "")], &[], false),
        ("a pod that is ready", vec![slice("b", one)], &[0], false),
    ] {
        now += Duration::from_secs(1);
        let mut published = Vec::new();
        for (number, change) in changes.into_iter().enumerate() {
            state.apply(Batch { changes: vec![change], ..Batch::default() });
            published.extend(state.translate(now).map(|_| number));
        }
        assert_eq!(published, at_once, "{case}");
        assert_eq!(state.translate(now + debounce::MAX_DELAY).is_some(), in_the_end, "{case}");
    }
    let table = state.published.expect("something is published").translation.table.to_string();
    assert!(
        table.starts_with("host a.test\n") && table.contains("10.0.0.1:80") && !table.contains("refuse"),
        "{table}"
    );
}

#[test]
fn a_closely_following_change_is_published_after_a_pause() {
    let mut state = WatchState { is_confirmed: true, ..WatchState::new(&Options::default()) };
    let began = Instant::now();
    let at = |micros| began + Duration::from_micros(micros);
    for (micros, host, is_published) in [
        (0, Some("a.test"), true),
        (300, Some("b.test"), false),
        (900, Some("c.test"), false),
        (1_800, None, false),
        (1_900, None, true),
        // The former host is missing; it may be on its way back.
        (9_000, Some("d.test"), false),
        (10_000, None, true),
    ] {
        if let Some(host) = host {
            state.apply(Batch { changes: ours(host), ..Batch::default() });
        }
        assert_eq!(state.translate(at(micros)).is_some(), is_published, "{micros}");
    }
    let hosts = state.published.expect("something is published").translation.table.hosts;
    assert_eq!(hosts.keys().map(ToString::to_string).collect::<Vec<_>>(), ["d.test"]);
}

fn endpoint(last: u8) -> Change {
    slice("a", &format!("{{addresses: [10.0.0.{last}]}}"))
}

fn with_an_endpoint() -> Batch {
    let changes = ours("a.test").into_iter().chain([object(SERVICE), endpoint(1)]).collect();
    Batch { changes, ..Batch::default() }
}

#[test]
fn a_change_right_after_a_publication_waits_for_a_pause() {
    let mut state = WatchState { is_confirmed: true, ..WatchState::new(&Options::default()) };
    let began = Instant::now();
    let at = |micros| began + Duration::from_micros(micros);
    state.apply(with_an_endpoint());
    state.translate(at(0)).expect("a translation");
    // It is compiled and swapped in.
    state.debounce.publish(at(5_000));
    state.apply(Batch { changes: vec![endpoint(2)], ..Batch::default() });
    assert!(state.translate(at(5_300)).is_none());
    assert!(state.translate(at(6_300)).is_some());
}

#[test]
fn a_translation_names_the_receipt_of_its_first_unpublished_change() {
    let mut state = WatchState { is_confirmed: true, ..WatchState::new(&Options::default()) };
    let began = Instant::now();
    let at = |micros| began + Duration::from_micros(micros);
    let batch = |last, received| Batch { changes: vec![endpoint(last)], received, ..Batch::default() };
    state.apply(Batch { received: Some(at(0)), ..with_an_endpoint() });
    assert_eq!(state.translate(at(7)).map(|(_, received)| received), Some(at(0)));
    // Published 7 µs later, so both changes wait and are published together.
    state.apply(batch(2, Some(at(20))));
    assert!(state.translate(at(30)).is_none());
    state.apply(batch(3, Some(at(40))));
    assert!(state.translate(at(50)).is_none());
    assert_eq!(state.translate(at(5_000)).map(|(_, received)| received), Some(at(20)));
    // Neither an object that changed nothing nor a change back leaves its time behind.
    state.apply(batch(3, Some(at(6_000))));
    assert!(state.translate(at(9_000)).is_none());
    state.apply(batch(4, Some(at(9_100))));
    state.apply(batch(3, Some(at(9_200))));
    assert!(state.translate(at(12_000)).is_none());
    state.apply(batch(5, Some(at(20_000))));
    assert_eq!(state.translate(at(20_100)).map(|(_, received)| received), Some(at(20_000)));
    // A source without a clock counts from the translation.
    state.apply(batch(6, None));
    assert_eq!(state.translate(at(30_000)).map(|(_, received)| received), Some(at(30_000)));
}

#[tokio::test]
async fn a_change_during_a_publication_waits_for_a_pause() {
    let options = Options::default();
    let status =
        status::StatusTask::begin(&SourceConfig::Manifests("/nonexistent".into()), None).await.expect("no server");
    let (mut state, mut save_scheduler) = (WatchState::new(&options), SaveScheduler::new(None));
    let (sender, receiver) = source::queue();
    sender.try_send(with_an_endpoint()).expect("there is room");
    let (published, mut publications) = mpsc::unbounded_channel();
    let publish = |_: Translation, _| {
        let began = Instant::now();
        // The second publication is followed by no further changes.
        sender.try_send(Batch { changes: vec![endpoint(2)], ..Batch::default() }).expect("there is room");
        std::thread::sleep(5 * debounce::QUIET);
        published.send((began, Instant::now())).expect("somebody waits for it");
    };
    let compare = async {
        let mut times = Vec::new();
        while times.len() < 2 {
            let next = time::timeout(Duration::from_secs(10), publications.recv()).await;
            times.push(next.expect("in time").expect("more"));
        }
        let pause = times[1].0 - times[0].1;
        assert!(pause >= debounce::QUIET, "{pause:?}");
    };
    tokio::select! {
        () = translate_batches(receiver, &options, &mut state, &mut save_scheduler, &status, publish) => panic!("the source goes on"),
        () = compare => {}
    }
}

#[test]
fn addresses_of_this_node_are_kept_while_they_cannot_be_read() {
    let mut state = WatchState::new(&Options::default());
    let known = BTreeSet::from([IpAddr::from([192, 0, 2, 1])]);
    state.locate(Some(known.clone()));
    assert!(std::mem::take(&mut state.is_changed));
    state.locate(None);
    assert_eq!((&*state.cluster.own_addresses, state.is_changed), (&known, false));
    state.locate(Some(BTreeSet::new()));
    assert!(state.is_changed && state.cluster.own_addresses.is_empty());
}
