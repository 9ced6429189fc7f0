//! Pages have no fault of accessibility that axe-core finds.

use xtask_ui::browser::{DESK, PHONE, Scheme};
use xtask_ui::pages;

use crate::Scene;

#[test]
fn axe_finds_no_violation() {
    let Some(scene) = Scene::open("axe_finds_no_violation") else { return };
    let mut all = Vec::new();
    for (scheme, view) in [(Scheme::Light, DESK), (Scheme::Dark, DESK), (Scheme::Light, PHONE)] {
        scene.browser.prefer(scheme).expect("a scheme");
        scene.browser.resize(view).expect("a size");
        let unknown = "/dashboard/no-such-page".to_owned();
        for path in pages::of_few().into_iter().map(|page| page.path).chain([unknown]) {
            scene.visit(scene.few(), &path);
            let found = scene.browser.violations(&scene.plan.axe).expect("axe-core");
            all.extend(found.into_iter().map(|line| format!("{path}, {}, {} px: {line}", scheme.name(), view.width)));
        }
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

#[test]
fn axe_finds_a_fault_that_is_there() {
    let Some(scene) = Scene::open("axe_finds_a_fault_that_is_there") else { return };
    scene.visit(scene.few(), "/dashboard");
    // Outside of the content, which updates replace.
    scene.text("document.querySelector('header').append(document.createElement('button')); return ''");
    let found = scene.browser.violations(&scene.plan.axe).expect("axe-core");
    assert!(found.iter().any(|line| line.contains("button-name")), "{found:?}");
}
