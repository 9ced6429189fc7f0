//! Pages have two schemes of colours and fit a phone.

use xtask_ui::browser::{DESK, PHONE, Scheme};
use xtask_ui::stage::MANY;
use xtask_ui::{objects, pages};

use crate::Scene;

#[test]
fn colours_follow_the_preferred_scheme() {
    let Some(scene) = Scene::open("colours_follow_the_preferred_scheme") else { return };
    for page in pages::of_few() {
        let light = lightness(&scene, Scheme::Light, &page.path);
        let dark = lightness(&scene, Scheme::Dark, &page.path);
        assert!(light > 200.0 && dark < 60.0, "{}: backgrounds have {light} and {dark} of 255", page.path);
    }
}

/// Returns the mean of red, green and blue of a page's background, from 0 to 255.
fn lightness(scene: &Scene, scheme: Scheme, path: &str) -> f64 {
    scene.browser.prefer(scheme).expect("a scheme");
    scene.visit(scene.few(), path);
    let script = "
        for (const one of [document.body, document.documentElement]) {
            const [red, green, blue, alpha = 1] = getComputedStyle(one).backgroundColor.match(/[\\d.]+/g).map(Number);
            if (alpha > 0) return (red + green + blue) / 3;
        }
        return 255";
    scene.text(script).parse().expect("a number")
}

#[test]
fn a_phone_scrolls_in_one_direction() {
    let Some(scene) = Scene::open("a_phone_scrolls_in_one_direction") else { return };
    for view in [PHONE, DESK] {
        scene.browser.resize(view).expect("a size");
        for (product, host) in [(scene.few(), objects::SHOP.to_owned()), (scene.many(), objects::nth_host(MANY / 2))] {
            for page in pages::all(&host) {
                scene.visit(product, &page.path);
                let width: u32 = scene.text("return document.documentElement.scrollWidth").parse().expect("a number");
                assert!(width <= view.width, "{}: {width} px of {}", page.path, view.width);
            }
        }
    }
}
