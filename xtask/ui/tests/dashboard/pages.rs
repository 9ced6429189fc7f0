//! Laws of every page: nothing fails, nothing is loaded from elsewhere, and tables need no scripts.

use std::io::Write as _;

use flate2::{Compression, write::GzEncoder};
use serde_json::json;
use xtask_ui::browser::FOREIGN;
use xtask_ui::stage::{self, MANY};
use xtask_ui::{objects, pages};

use crate::Scene;

/// Maximum size of everything that a page loads besides itself, compressed.
const ASSETS_MAX: usize = 60_000;

#[test]
fn pages_load_with_ten_thousand_hosts() {
    let Some(scene) = Scene::open("pages_load_with_ten_thousand_hosts") else { return };
    let origin = scene.many().url("/");
    scene.browser.requests().expect("the log");
    for page in pages::all(&objects::nth_host(MANY - 1)) {
        scene.visit(scene.many(), &page.path);
        let console = scene.browser.console().expect("the console");
        assert!(console.is_empty(), "{}: {console:?}", page.path);
        let requests = scene.browser.requests().expect("the log");
        assert!(!requests.is_empty(), "{}: no request is in the log", page.path);
        let elsewhere: Vec<_> = requests.iter().filter(|url| !url.starts_with(&origin)).collect();
        assert!(elsewhere.is_empty(), "{}: {elsewhere:?}", page.path);
        assert_eq!(scene.text("return document.querySelectorAll('main').length"), "1", "{}", page.path);
        assert_eq!(scene.text("return document.querySelectorAll('h1').length"), "1", "{}", page.path);
    }
}

#[test]
fn assets_are_small() {
    let Some(scene) = Scene::open("assets_are_small") else { return };
    let mut paths = std::collections::BTreeSet::new();
    for page in pages::of_few() {
        scene.visit(scene.few(), &page.path);
        let found = "return performance.getEntriesByType('resource').map(entry => new URL(entry.name).pathname)
            .filter(path => path !== location.pathname).join(' ')";
        paths.extend(scene.text(found).split_whitespace().map(str::to_owned));
    }
    assert!(!paths.is_empty(), "pages load neither a style nor a script");
    let mut sum = 0;
    for path in &paths {
        let (status, text) = stage::get(scene.few().admin, "localhost", path).expect("an asset");
        assert_eq!(status, 200, "{path}");
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(text.as_bytes()).expect("compressed");
        sum += gzip.finish().expect("compressed").len();
    }
    println!("{} assets, {sum} bytes compressed: {paths:?}", paths.len());
    assert!(sum <= ASSETS_MAX, "{sum} bytes: {paths:?}");
}

#[test]
fn tables_need_no_scripts() {
    let Some(scene) = Scene::open("tables_need_no_scripts") else { return };
    scene.browser.devtools("Emulation.setScriptExecutionDisabled", json!({"value": true})).expect("no scripts");
    for (product, host) in [(scene.few(), objects::SHOP.to_owned()), (scene.many(), objects::nth_host(0))] {
        for page in pages::all(&host) {
            scene.visit(product, &page.path);
            for table in page.tables {
                let rows = format!("return document.querySelectorAll('#{table} tr').length");
                let rows: usize = scene.text(&rows).parse().expect("a number");
                assert!(rows >= 1, "{}: no table `{table}`", page.path);
            }
        }
    }
    scene.visit(scene.few(), "/dashboard/hosts");
    let row = format!("return document.querySelector('#hosts [data-key=\"{}\"]') !== null", objects::SHOP);
    assert_eq!(scene.text(&row), "true", "the hosts are in the page itself");
}

#[test]
fn another_name_of_this_machine_is_refused() {
    let Some(scene) = Scene::open("another_name_of_this_machine_is_refused") else { return };
    for page in pages::of_few() {
        for host in [FOREIGN, "localhost.example.com"] {
            let (status, body) = stage::get(scene.few().admin, host, &page.path).expect("an answer");
            assert_eq!(status, 403, "{host}{}: {body}", page.path);
        }
        assert_eq!(stage::get(scene.few().admin, "localhost", &page.path).expect("an answer").0, 200);
    }
    // A page of another origin whose name leads to loopback: the browser itself sends the name.
    let url = format!("http://{FOREIGN}:{}/dashboard/hosts", scene.few().admin);
    scene.browser.visit(&url).expect("an answer");
    assert_eq!(scene.text("return performance.getEntriesByType('navigation')[0].responseStatus"), "403");
    assert!(!scene.text("return document.documentElement.textContent").contains(objects::SHOP));
}
