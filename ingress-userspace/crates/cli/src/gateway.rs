//! `migrate gateway`: writes objects of Gateway API in place of Ingresses. It changes nothing.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Args;
use ingress_control::{
    change::ObjectName,
    migration::{Expressed, GatewayMigration, to_gateway},
};

use crate::{
    FINDINGS,
    check::{Installation, InstallationArgs},
    options::object_name,
    print,
};

// The struct of options has no doc comment: clap would show it in place of the description of the command.
#[derive(Debug, Args)]
pub struct GatewayArgs {
    #[command(flatten)]
    pub installation: InstallationArgs,

    /// Name of the Gateway to write.
    #[arg(long, value_name = "NAMESPACE/NAME", default_value = "default/ingress", value_parser = object_name)]
    pub gateway: ObjectName,

    /// Write Ingresses of IngressClasses with this `spec.controller`, such as `xdp-ingress.io/controller`. Default: that
    /// of ingress-nginx.
    #[arg(long, value_name = "NAME")]
    pub controller_class: Option<String>,

    /// Name of the class to write, as used in the annotation `kubernetes.io/ingress.class`, and in `ingressClassName`
    /// where there is no IngressClass. Default: that of ingress-nginx.
    #[arg(long, value_name = "NAME")]
    pub ingress_class: Option<String>,
}

/// Runs `migrate gateway`: objects go to standard output, and verdicts to standard error.
///
/// # Errors
/// Fails if the objects cannot be read, no Ingress is among them, or the streams cannot be written.
pub fn gateway(args: GatewayArgs) -> Result<ExitCode> {
    let GatewayArgs { installation, gateway, controller_class, ingress_class } = args;
    let Installation { objects, controller, is_directory, is_partial: _ } = Installation::read(&installation)?;
    let mut options = controller.options(&objects, is_directory);
    if let Some(name) = controller_class {
        options.classes.controller = name;
    }
    if let Some(name) = ingress_class {
        options.classes.name = name;
    }
    let migration = to_gateway(&objects.cluster, &options, &gateway, None);
    ensure_found(&migration, &options.classes.controller)?;
    let verdicts: String = migration.verdicts.iter().map(|verdict| format!("{verdict}\n")).collect();
    print::remark(&verdicts)?;
    print::text(&written(&migration)?)?;
    let is_clean = migration.verdicts.iter().all(|verdict| matches!(verdict.expressed, Expressed::Fully(_)));
    Ok(if is_clean { ExitCode::SUCCESS } else { FINDINGS.into() })
}

/// # Errors
/// Fails if no Ingress is of the class, because an empty result would look like a finished migration.
fn ensure_found(migration: &GatewayMigration, controller: &str) -> Result<()> {
    ensure!(
        !migration.verdicts.is_empty(),
        "found no Ingress of a class with the controller `{controller}`; name another by --controller-class, or the class by \
         --ingress-class"
    );
    Ok(())
}

/// Returns the objects as a YAML stream.
fn written(migration: &GatewayMigration) -> Result<String> {
    let mut text = String::new();
    for (number, object) in migration.objects.iter().enumerate() {
        if number > 0 {
            text += "---\n";
        }
        text += &serde_saphyr::to_string(object)?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::read_text;

    #[test]
    fn objects_are_a_stream_that_can_be_read_again() {
        let ingress = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {ports: [{port: 80}]}\n---\n\
            apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: web}\nspec:\n  ingressClassName: nginx\n  \
            rules: [{host: a.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, \
            port: {number: 80}}}}]}}]\n";
        let objects = read_text(ingress);
        let options = crate::check::Controller::default().options(&objects, true);
        let migration = to_gateway(&objects.cluster, &options, &ObjectName::new("default", "ingress"), None);
        let text = written(&migration).expect("YAML");
        let again = read_text(&text);
        let cluster = &again.cluster;
        assert_eq!(
            (cluster.gateways().len(), cluster.listener_sets().len(), cluster.http_routes().len()),
            (1, 1, 1),
            "{text}"
        );
    }

    #[test]
    fn a_result_without_an_ingress_is_an_error() {
        let objects = read_text("apiVersion: v1\nkind: Service\nmetadata: {name: web}\n");
        let options = crate::check::Controller::default().options(&objects, true);
        let migration = to_gateway(&objects.cluster, &options, &ObjectName::new("default", "ingress"), None);
        let error = ensure_found(&migration, &options.classes.controller).expect_err("no Ingress");
        assert!(error.to_string().contains("--controller-class"), "{error}");
    }
}
