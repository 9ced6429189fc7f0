//! The class of an Ingress decides which controller serves it, and a change of class takes effect at once.

use crate::{
    objects::{ingress, rule, site},
    stage::{stage, until},
};

#[test]
fn an_ingress_of_an_unknown_class_gets_neither_routes_nor_status() {
    let Some(stage) = stage() else { return };
    let _beside = stage.beside_others();
    let scope = stage.scope("class-unknown");
    scope.run(&[("web", 1)]);
    let unknown =
        site("unknown", "unknown.class.test", "web").replace("ingressClassName: xdp", "ingressClassName: other");
    scope.apply(&(unknown + &site("known", "known.class.test", "web")));
    stage.await_status("known.class.test", "/", 200);
    until("the known one has a status", || {
        let known = scope.json(&["get", "ingress", "known"]);
        known["status"]["loadBalancer"]["ingress"].as_array().map(drop).ok_or_else(|| known["status"].to_string())
    });
    for node in stage.nodes() {
        assert_eq!(stage.get(node, "unknown.class.test", "/").expect("an answer").status, 404);
    }
    let unknown = scope.json(&["get", "ingress", "unknown"]);
    assert!(unknown["status"]["loadBalancer"].as_object().is_none_or(serde_json::Map::is_empty), "{unknown}");
}

#[test]
fn classes_can_be_added_and_removed_live() {
    let Some(stage) = stage() else { return };
    let _beside = stage.beside_others();
    let scope = stage.scope("class-live");
    scope.run(&[("web", 1)]);
    let mine = site("web", "live.class.test", "web");
    scope.apply(&mine);
    stage.await_status("live.class.test", "/", 200);
    scope.apply(&mine.replace("ingressClassName: xdp", "ingressClassName: edge"));
    stage.await_status("live.class.test", "/", 404);
    // The class appears: the controller that it names decides.
    let class = |name: &str, controller: &str| {
        format!(
            "---\napiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {{name: {name}}}\nspec: {{controller: {controller}}}\n"
        )
    };
    scope.share(&class("edge", "xdp-ingress.io/controller"));
    stage.await_status("live.class.test", "/", 200);
    stage.kubectl(&["delete", "ingressclass", "edge"]);
    stage.await_status("live.class.test", "/", 404);
    scope.share(&class("edge", "example.com/other"));
    // Classes arrive in the order of their creation, so a controller that serves `later` knows `edge`.
    scope.share(&class("edge-later", "xdp-ingress.io/controller"));
    let later = site("later", "later.class.test", "web");
    scope.apply(&later.replace("ingressClassName: xdp", "ingressClassName: edge-later"));
    stage.await_status("later.class.test", "/", 200);
    for node in stage.nodes() {
        assert_eq!(stage.get(node, "live.class.test", "/").expect("an answer").status, 404);
    }
    // The legacy annotation also names a class that has no IngressClass.
    let legacy = ingress("legacy", &rule("legacy.class.test", &[("Prefix", "/", "web")]))
        .replace("  ingressClassName: xdp\n", "")
        .replace("{name: legacy}", "{name: legacy, annotations: {kubernetes.io/ingress.class: xdp}}");
    scope.apply(&legacy);
    stage.await_status("legacy.class.test", "/", 200);
}

#[test]
fn parameters_of_a_class_name_the_settings_of_all_hosts() {
    let Some(stage) = stage() else { return };
    // The settings apply to all hosts.
    let _alone = stage.alone();
    let scope = stage.scope("parameters");
    scope.run(&[("web", 1)]);
    let secure = "  tls: [{hosts: [settings.test]}]\n".to_owned() + &rule("settings.test", &[("Prefix", "/", "web")]);
    scope.apply(&ingress("web", &secure));
    stage.await_status("settings.test", "/", 308);
    let namespace = &scope.name;
    scope.apply(
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {http-redirect-code: \"302\"}\n",
    );
    scope.share(&format!(
        "---\napiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {{name: tuned}}\nspec:\n  controller: xdp-ingress.io/controller\n  \
         parameters: {{kind: ConfigMap, name: settings, scope: Namespace, namespace: {namespace}}}\n"
    ));
    stage.await_status("settings.test", "/", 302);
    scope.kubectl(&["patch", "configmap", "settings", "--patch", r#"{"data":{"http-redirect-code":"307"}}"#]);
    stage.await_status("settings.test", "/", 307);
    stage.kubectl(&["delete", "ingressclass", "tuned"]);
    stage.await_status("settings.test", "/", 308);
}
