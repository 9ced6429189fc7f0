//! Whose an Ingress is, and that it follows at once when that changes.

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
fn classes_come_and_go_live() {
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
    let class = "---\napiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: edge}\nspec: {controller: CONTROLLER}\n";
    stage.apply(&class.replace("CONTROLLER", "xdp-ingress.io/controller"));
    stage.await_status("live.class.test", "/", 200);
    stage.kubectl(&["delete", "ingressclass", "edge"]);
    stage.await_status("live.class.test", "/", 404);
    stage.apply(&class.replace("CONTROLLER", "example.com/other"));
    // The legacy annotation names a class without an IngressClass of that name as well.
    let legacy = ingress("legacy", &rule("legacy.class.test", &[("Prefix", "/", "web")]))
        .replace("  ingressClassName: xdp\n", "")
        .replace("{name: legacy}", "{name: legacy, annotations: {kubernetes.io/ingress.class: xdp}}");
    scope.apply(&legacy);
    stage.await_status("legacy.class.test", "/", 200);
    // What came after the class of another controller is served, so the class is known: it is not ours.
    for node in stage.nodes() {
        assert_eq!(stage.get(node, "live.class.test", "/").expect("an answer").status, 404);
    }
    stage.kubectl(&["delete", "ingressclass", "edge"]);
}

#[test]
fn parameters_of_a_class_name_the_settings_of_all_hosts() {
    let Some(stage) = stage() else { return };
    // The settings are everybody's.
    let _alone = stage.alone();
    let scope = stage.scope("parameters");
    scope.run(&[("web", 1)]);
    let secure = "  tls: [{hosts: [settings.test]}]\n".to_owned() + &rule("settings.test", &[("Prefix", "/", "web")]);
    scope.apply(&ingress("web", &secure));
    stage.await_status("settings.test", "/", 308);
    let namespace = &scope.name;
    stage.apply(&format!(
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{namespace: {namespace}, name: settings}}\ndata: {{http-redirect-code: \"302\"}}\n\
         ---\napiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {{name: tuned}}\nspec:\n  controller: xdp-ingress.io/controller\n  \
         parameters: {{kind: ConfigMap, name: settings, scope: Namespace, namespace: {namespace}}}\n"
    ));
    stage.await_status("settings.test", "/", 302);
    scope.kubectl(&["patch", "configmap", "settings", "--patch", r#"{"data":{"http-redirect-code":"307"}}"#]);
    stage.await_status("settings.test", "/", 307);
    stage.kubectl(&["delete", "ingressclass", "tuned"]);
    stage.await_status("settings.test", "/", 308);
}
