//! Reads a cluster once, and writes nothing. No Secret is read.

use std::{collections::BTreeSet, fmt::Debug, sync::Arc};

use anyhow::{Context as _, Result};
use ingress_control::{
    Contact, KubernetesConfig, Origin,
    change::{Object, ObjectName},
    source::kube::connect,
};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        admissionregistration::v1::ValidatingWebhookConfiguration,
        apps::v1::{DaemonSet, Deployment},
        core::v1::{ConfigMap, Service},
        networking::v1::{Ingress, IngressClass},
    },
};
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DynamicObject, ListParams, ObjectList},
};
use serde::{Serialize, de::DeserializeOwned};

use super::{controller::Controller, objects::Objects};

/// Objects of one answer. The API server counts each list as one request, whatever its size.
const PAGE: u32 = 500;
/// Label of the objects that ingress-nginx' chart and manifests install.
const INSTALLED: &str = "app.kubernetes.io/name=ingress-nginx";

/// Reads the Ingresses of a cluster, or of one namespace, with all that decides about them.
///
/// # Errors
/// Fails if the API server does not answer, or refuses a list that is needed.
pub(super) async fn read(
    config: &KubernetesConfig,
    deployment: Option<&ObjectName>,
    settings: Option<&ObjectName>,
    timeout: std::time::Duration,
) -> Result<Objects> {
    let client = connect(config, &Contact::default()).await?;
    tokio::time::timeout(timeout, all(&client, config.namespace.as_deref(), deployment, settings))
        .await
        .map_err(|_late| anyhow::anyhow!("no complete answer within {timeout:?}; see `--timeout`"))?
}

async fn all(
    client: &Client,
    namespace: Option<&str>,
    deployment: Option<&ObjectName>,
    settings: Option<&ObjectName>,
) -> Result<Objects> {
    let mut objects = Objects::default();
    for ingress in list(&scoped::<Ingress>(client, namespace), "Ingresses", None).await? {
        objects.add(Object::Ingress(Arc::new(ingress)), &Origin::Api);
    }
    for class in list(&Api::<IngressClass>::all(client.clone()), "IngressClasses", None).await? {
        objects.add(Object::IngressClass(Arc::new(class)), &Origin::Api);
    }
    for service in list(&scoped::<Service>(client, namespace), "Services", None).await? {
        objects.add_other(&of_kind("Service", &service)?);
        objects.add(Object::Service(Arc::new(service.into())), &Origin::Api);
    }
    installation(client, deployment, &mut objects).await?;
    // With `namespace`, those of ingress-nginx are not among the Services above; the right to list them may be missing.
    let namespaces: BTreeSet<_> =
        objects.workloads.iter().map(|workload| Arc::clone(&workload.name.namespace)).collect();
    for namespace in namespaces.iter().filter(|own| namespace.is_some_and(|namespace| ***own != *namespace)) {
        let services = Api::<Service>::namespaced(client.clone(), namespace);
        for service in list(&services, "Services", None).await.unwrap_or_default() {
            objects.add_other(&of_kind("Service", &service)?);
        }
    }
    // The right to list them may be missing; the rest of the report needs none of them.
    let webhooks = untyped::<ValidatingWebhookConfiguration>(client, None);
    for webhook in list(&webhooks, "ValidatingWebhookConfigurations", None).await.unwrap_or_default() {
        objects.add_other(&of_kind("ValidatingWebhookConfiguration", &webhook)?);
    }
    let controller = Controller::of(&objects, deployment, None)?.with_settings(settings);
    for name in controller.config_maps(&objects) {
        config_map(client, &name, &mut objects).await?;
    }
    // Settings name further ConfigMaps.
    for name in controller.config_maps(&objects) {
        config_map(client, &name, &mut objects).await?;
    }
    Ok(objects)
}

/// Reads the workloads of ingress-nginx.
async fn installation(client: &Client, deployment: Option<&ObjectName>, objects: &mut Objects) -> Result<()> {
    if let Some(name) = deployment {
        let deployments = untyped::<Deployment>(client, Some(&*name.namespace));
        let daemon_sets = untyped::<DaemonSet>(client, Some(&*name.namespace));
        if let Some(found) = deployments.get_opt(&name.name).await.context("cannot read the Deployment")? {
            objects.add_other(&of_kind("Deployment", &found)?);
        } else if let Some(found) = daemon_sets.get_opt(&name.name).await.context("cannot read the DaemonSet")? {
            objects.add_other(&of_kind("DaemonSet", &found)?);
        }
        return Ok(());
    }
    for found in list(&untyped::<Deployment>(client, None), "Deployments", Some(INSTALLED)).await? {
        objects.add_other(&of_kind("Deployment", &found)?);
    }
    for found in list(&untyped::<DaemonSet>(client, None), "DaemonSets", Some(INSTALLED)).await? {
        objects.add_other(&of_kind("DaemonSet", &found)?);
    }
    Ok(())
}

async fn config_map(client: &Client, name: &ObjectName, objects: &mut Objects) -> Result<()> {
    if objects.has_config_map(name) {
        return Ok(());
    }
    let api = Api::<ConfigMap>::namespaced(client.clone(), &name.namespace);
    if let Some(found) = api.get_opt(&name.name).await.with_context(|| format!("cannot read ConfigMap `{name}`"))? {
        objects.add(Object::ConfigMap(Arc::new(found)), &Origin::Api);
    }
    Ok(())
}

fn scoped<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

/// Returns the API of a kind, for objects as JSON. Decoders for typed workloads would be 150 types of code, for fields that
/// nothing here reads.
fn untyped<K: Resource<DynamicType = ()>>(client: &Client, namespace: Option<&str>) -> Api<DynamicObject> {
    let resource = ApiResource::erase::<K>(&());
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

/// Returns all objects of a kind, page by page.
async fn list<K>(api: &Api<K>, what: &str, selector: Option<&str>) -> Result<Vec<K>>
where
    K: Clone + Debug + DeserializeOwned,
{
    let mut params = ListParams::default().limit(PAGE);
    params.label_selector = selector.map(str::to_owned);
    let mut all = Vec::new();
    loop {
        let ObjectList { metadata, items, .. } =
            api.list(&params).await.with_context(|| format!("cannot list {what}"))?;
        all.extend(items);
        params.continue_token = metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            return Ok(all);
        }
    }
}

/// Returns an object as JSON with its kind, which objects in lists lack.
fn of_kind(kind: &str, object: &impl Serialize) -> Result<serde_json::Value> {
    let mut value = serde_json::to_value(object)?;
    value["kind"] = kind.into();
    Ok(value)
}

#[cfg(test)]
mod tests {
    use std::{
        collections::VecDeque,
        sync::{Mutex, PoisonError},
    };

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    /// Returns a client whose server expects these paths, each with a part of its query, and answers in this order.
    fn client(answers: Vec<(&'static str, &'static str, u16, Value)>) -> Client {
        let answers = Arc::new(Mutex::new(VecDeque::from(answers)));
        let service = tower::service_fn(move |request: Request<Body>| {
            let next = answers.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let (path, query, code, answer) = next.expect("no further request");
            assert_eq!(request.uri().path(), path);
            let asked = request.uri().query().unwrap_or_default();
            assert!(asked.contains(query), "`{asked}` lacks `{query}`");
            let answer = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
            async { answer }
        });
        Client::new(service, "default")
    }

    /// Returns the controller of ingress-nginx as lists have it, without its kind.
    fn controller(name: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": "ingress-nginx"}, "unknown": {"a": 1}, "spec": {"template": {
            "spec": {"containers": [
                {"name": "sidecar", "args": null},
                {"name": "controller", "image": "registry.k8s.io/ingress-nginx/controller:v1.12.1", "args": ["--a"]},
            ]},
        }}})
    }

    fn list(kind: &str, more: &str, items: &[Value]) -> Value {
        json!({"kind": format!("{kind}List"), "apiVersion": "apps/v1", "metadata": {"continue": more}, "items": items})
    }

    fn workloads(objects: &Objects) -> Vec<String> {
        let texts = objects.workloads.iter();
        texts.map(|workload| format!("{} {} {:?}", workload.kind, workload.name, workload.arguments)).collect()
    }

    #[tokio::test]
    async fn workloads_are_found_by_their_label_on_all_pages() {
        let selector = "labelSelector=app.kubernetes.io%2Fname%3Dingress-nginx";
        let client = client(vec![
            ("/apis/apps/v1/deployments", selector, 200, list("Deployment", "next", &[controller("a")])),
            ("/apis/apps/v1/deployments", "continue=next", 200, list("Deployment", "", &[controller("b")])),
            ("/apis/apps/v1/daemonsets", "limit=500", 200, list("DaemonSet", "", &[controller("c")])),
        ]);
        let mut objects = Objects::default();
        installation(&client, None, &mut objects).await.expect("lists");
        let expect = [
            r#"Deployment ingress-nginx/a ["--a"]"#,
            r#"Deployment ingress-nginx/b ["--a"]"#,
            r#"DaemonSet ingress-nginx/c ["--a"]"#,
        ];
        assert_eq!(workloads(&objects), expect);
    }

    #[tokio::test]
    async fn a_workload_that_is_named_is_of_either_kind() {
        let missing = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "not found", "reason": "NotFound", "code": 404});
        let client = client(vec![
            ("/apis/apps/v1/namespaces/ingress-nginx/deployments/c", "", 404, missing),
            ("/apis/apps/v1/namespaces/ingress-nginx/daemonsets/c", "", 200, controller("c")),
        ]);
        let mut objects = Objects::default();
        installation(&client, Some(&ObjectName::new("ingress-nginx", "c")), &mut objects).await.expect("an object");
        assert_eq!(workloads(&objects), [r#"DaemonSet ingress-nginx/c ["--a"]"#]);
    }
}
