//! Pages follow the configuration and the requests without a reload, and show names of users as text.

use std::fs;
use std::time::{Duration, Instant};

use xtask_ui::objects::{self, QUIET};
use xtask_ui::stage::Product;

use crate::Scene;

/// Longest time until a change is visible.
const LIMIT: Duration = Duration::from_secs(2);
/// Text that would become elements and run scripts if a page took it as HTML.
const HOSTILE: &str =
    "\"'><img data-injected src=x onerror=\"window.injected=1\"><script>window.injected=1</script>&lt;";

/// A manifest that a test has added; it is removed at the end of the test.
struct Added<'p> {
    product: &'p Product,
    name: &'static str,
}

impl<'p> Added<'p> {
    fn write(product: &'p Product, name: &'static str, text: &str) -> Self {
        product.write(name, text).expect("a manifest");
        Self { product, name }
    }
}

impl Drop for Added<'_> {
    fn drop(&mut self) {
        fs::remove_file(self.product.manifests.join(self.name)).ok();
    }
}

/// Marks the page, so that a reload would be noticed.
fn mark(scene: &Scene) {
    scene.text("window.marked = true; return ''");
}

fn assert_not_reloaded(scene: &Scene) {
    assert_eq!(scene.text("return window.marked === true"), "true", "the page was loaded again");
}

#[test]
fn a_request_is_counted_at_once() {
    let Some(scene) = Scene::open("a_request_is_counted_at_once") else { return };
    scene.visit(scene.few(), "/dashboard/hosts");
    mark(&scene);
    let row = format!("document.querySelector('#hosts [data-key=\"{QUIET}\"]')");
    let before = scene.text(&format!("return {row}.textContent"));
    let began = Instant::now();
    for _ in 0..7 {
        assert_eq!(scene.few().request(QUIET, "/").expect("an answer"), 200);
    }
    let shown = serde_json::to_string(&before).expect("a string");
    scene.browser.wait(LIMIT, &format!("return {row}.textContent !== {shown}")).expect("the request is counted");
    println!("a request is shown after {} ms", began.elapsed().as_millis());
    assert_not_reloaded(&scene);
}

#[test]
fn a_changed_object_is_visible_at_once() {
    let Some(scene) = Scene::open("a_changed_object_is_visible_at_once") else { return };
    scene.visit(scene.few(), "/dashboard/configuration");
    mark(&scene);
    let began = Instant::now();
    let text = objects::whole_host("ops", "fresh", "fresh.example.com", "quiet");
    let _added = Added::write(scene.few(), "fresh.yaml", &text);
    let shown = "return document.getElementById('changes').textContent.includes('fresh.example.com')";
    scene.browser.wait(LIMIT, shown).expect("the change is shown");
    println!("a change is shown after {} ms", began.elapsed().as_millis());
    assert_not_reloaded(&scene);
}

#[test]
fn a_bad_ingress_is_visible_at_once() {
    let Some(scene) = Scene::open("a_bad_ingress_is_visible_at_once") else { return };
    scene.visit(scene.few(), "/dashboard/configuration");
    mark(&scene);
    let shown = "document.getElementById('problems').textContent.includes('ops/broken')";
    let began = Instant::now();
    let added = Added::write(
        scene.few(),
        "broken.yaml",
        &objects::whole_host("ops", "broken", "broken.example.com", "no-such-service"),
    );
    scene.browser.wait(LIMIT, &format!("return {shown}")).expect("the problem is shown");
    println!("a problem is shown after {} ms", began.elapsed().as_millis());
    drop(added);
    scene.browser.wait(LIMIT, &format!("return !{shown}")).expect("the problem is gone");
    assert_not_reloaded(&scene);
}

#[test]
fn hostile_text_stays_text() {
    let Some(scene) = Scene::open("hostile_text_stays_text") else { return };
    let host = "hostile.example.com";
    let configuration = "/dashboard/configuration";
    scene.visit(scene.few(), configuration);
    let _added = Added::write(scene.few(), "hostile.yaml", &objects::with_text("hostile", HOSTILE, host));
    // First by the events of an open page, then in pages that the server makes.
    let shown = "return document.getElementById('problems').textContent.includes('ops/hostile')";
    scene.browser.wait(LIMIT * 5, shown).expect("the problems of the hostile Ingress");
    assert_is_text(&scene, configuration, true);
    let in_query: String = HOSTILE.bytes().map(|byte| format!("%{byte:02X}")).collect();
    for (path, is_shown) in [
        (configuration.to_owned(), true),
        (format!("/dashboard/hosts/{host}"), true),
        (format!("/dashboard/explain?url=http://{host}/{in_query}"), true),
        (format!("/dashboard/explain?url={in_query}"), false),
        (format!("/dashboard/hosts?name={in_query}"), false),
        (format!("/dashboard/hosts/{in_query}"), false),
        (format!("/dashboard/{in_query}"), false),
    ] {
        scene.visit(scene.few(), &path);
        assert_is_text(&scene, &path, is_shown);
    }
}

fn assert_is_text(scene: &Scene, path: &str, is_shown: bool) {
    let injected = "return document.querySelector('[data-injected]') !== null || window.injected !== undefined";
    assert_eq!(scene.text(injected), "false", "{path}");
    let all = scene.text("return document.body.textContent");
    assert!(!is_shown || all.contains("<img data-injected"), "{path}: the text is missing: {all}");
}
