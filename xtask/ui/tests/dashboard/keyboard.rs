//! Pages are used by the keyboard alone.

use std::collections::BTreeSet;

use serde_json::Value;
use xtask_ui::pages;

use crate::Scene;

/// Returns what has the focus, and whether it can be seen that it does.
const FOCUS: &str = "
    const one = document.activeElement;
    if (one === null || one === document.body) return null;
    const all = [...document.querySelectorAll('*')];
    const style = getComputedStyle(one);
    const box = one.getBoundingClientRect();
    return {
        index: all.indexOf(one),
        html: one.outerHTML.slice(0, 120),
        href: one.getAttribute('href'),
        is_marked: (style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0) || style.boxShadow !== 'none',
        is_visible: box.width > 1 && box.height > 1 && box.bottom > 0 && box.top < innerHeight
            && box.right > 0 && box.left < innerWidth,
    };";
/// Returns the places of everything that can be used and is shown.
const USABLE: &str = "
    const all = [...document.querySelectorAll('*')];
    return [...document.querySelectorAll('a[href], button, input, select, textarea, summary')]
        .filter(one => !one.disabled && one.checkVisibility()).map(one => all.indexOf(one));";
/// Maximum number of stops on a page.
const STOPS_MAX: usize = 400;

#[test]
fn keys_reach_everything() {
    let Some(scene) = Scene::open("keys_reach_everything") else { return };
    for page in pages::of_few() {
        scene.visit(scene.few(), &page.path);
        let mut reached = BTreeSet::new();
        for stop in 0..STOPS_MAX {
            scene.browser.press("Tab").expect("a key");
            let focus = scene.browser.run(FOCUS).expect("the focus");
            let Some(index) = focus["index"].as_u64() else { break };
            if !reached.insert(index) {
                break;
            }
            assert_eq!(focus["is_marked"], true, "{}: the focus is not marked on {}", page.path, focus["html"]);
            assert_eq!(focus["is_visible"], true, "{}: the focus is out of sight on {}", page.path, focus["html"]);
            let is_skip_link = focus["href"].as_str().is_some_and(|target| target.starts_with('#'));
            assert!(stop > 0 || is_skip_link, "{}: the first stop is {}", page.path, focus["html"]);
        }
        let usable = scene.browser.run(USABLE).expect("the elements");
        let usable: BTreeSet<_> = usable.as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
        let missed: Vec<_> = usable.difference(&reached).collect();
        assert!(missed.is_empty() && !usable.is_empty(), "{}: {missed:?} of {usable:?} are never reached", page.path);
    }
}

#[test]
fn the_skip_link_leads_to_the_content() {
    let Some(scene) = Scene::open("the_skip_link_leads_to_the_content") else { return };
    for page in pages::of_few() {
        scene.visit(scene.few(), &page.path);
        scene.browser.press("Tab").expect("a key");
        let first = scene.browser.run(FOCUS).expect("the focus");
        assert_eq!(first["href"].as_str().map(|target| target.starts_with('#')), Some(true), "{}: {first}", page.path);
        scene.browser.press("Enter").expect("a key");
        scene.browser.press("Tab").expect("a key");
        // A page without links in its content goes on behind it.
        let before = "const one = document.activeElement, main = document.querySelector('main');
            return one === document.body || main.contains(one)
                || (main.compareDocumentPosition(one) & Node.DOCUMENT_POSITION_FOLLOWING) !== 0";
        let focus = scene.browser.run(FOCUS).expect("the focus");
        assert_eq!(scene.text(before), "true", "{}: after the skip link comes {}", page.path, focus["html"]);
    }
}

#[test]
fn an_url_is_explained_by_keys() {
    let Some(scene) = Scene::open("an_url_is_explained_by_keys") else { return };
    scene.visit(scene.few(), "/dashboard/explain");
    let field = "document.querySelector('main form input[name=\"url\"]')";
    scene.text(&format!("{field}.value = 'http://quiet.example.com/'; {field}.focus(); return ''"));
    scene.browser.press("Enter").expect("a key");
    let shown = "return location.search.includes('quiet.example.com')
        && document.querySelector('main').textContent.includes('ops/quiet')";
    scene.browser.wait(std::time::Duration::from_secs(5), shown).expect("the explanation");
}
