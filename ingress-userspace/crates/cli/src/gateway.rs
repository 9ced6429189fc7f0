//! `migrate gateway`: writes objects of Gateway API in place of Ingresses. It changes nothing.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Args;
use ingress_control::{
    change::ObjectName,
    migration::{Expressed, GatewayMigration, RowVerdict, to_gateway},
    translate::HostSharing,
};

use crate::{
    FINDINGS,
    check::{Controller, Installation, InstallationArgs, Objects},
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

    /// Rights of Ingresses at hosts of other namespaces, as the process has them: `paths`, `owner`, `granted` or `open`.
    #[arg(long, value_name = "MODE", default_value = "paths")]
    pub host_sharing: HostSharing,
}

/// Objects that could not be read, in an error.
const MOST: usize = 5;

/// Runs `migrate gateway`: objects go to standard output, and verdicts to standard error.
///
/// # Errors
/// Fails if an object or the settings cannot be read, no Ingress is among them, or the streams cannot be written.
pub fn gateway(args: GatewayArgs) -> Result<ExitCode> {
    let migration = migrate(args)?;
    print::remark(&told(&migration.verdicts))?;
    print::text(&written(&migration)?)?;
    let is_clean = migration.verdicts.iter().all(|verdict| matches!(verdict.expressed, Expressed::Fully(_)));
    Ok(if is_clean { ExitCode::SUCCESS } else { FINDINGS.into() })
}

fn migrate(args: GatewayArgs) -> Result<GatewayMigration> {
    let GatewayArgs { mut installation, gateway, controller_class, ingress_class, host_sharing } = args;
    // Other namespaces may have rules for the same hosts, so all are read.
    let namespace = installation.namespace.namespace.take();
    let Installation { objects, mut controller, is_directory, is_partial: _ } = Installation::read(&installation)?;
    ensure_read(&objects)?;
    let mut options = controller.options(&objects, is_directory);
    if let Some(name) = controller_class {
        if name != options.classes.controller {
            // The arguments of ingress-nginx do not hold for the Ingresses of another controller.
            controller = Controller::default().with_settings(installation.configmap.as_ref());
            options = controller.options(&objects, is_directory);
        }
        options.classes.controller = name;
    }
    if let Some(name) = ingress_class {
        options.classes.name = name;
    }
    options.host_sharing = host_sharing;
    if let Some(name) = controller.settings() {
        ensure!(
            objects.has_config_map(&name),
            "ConfigMap `{name}` of settings is not there, and settings may protect hosts; add it, or name another by \
             --configmap"
        );
    }
    let mut migration = to_gateway(&objects.cluster, &options, &gateway, namespace.as_deref());
    ensure_found(&migration, &options.classes.controller)?;
    if controller.settings().is_none() && controller.workload.is_none() {
        migration.verdicts.push(RowVerdict {
            subject: "settings".to_owned(),
            row: String::new(),
            expressed: Expressed::Not {
                because: "no ConfigMap was read, so it is unknown which hosts settings protect".to_owned(),
                instead: "name it by --configmap, if there is one".to_owned(),
            },
        });
    }
    Ok(migration)
}

/// # Errors
/// Fails if a part of the objects could not be read: it may hold rules or protections of any host.
fn ensure_read(objects: &Objects) -> Result<()> {
    let lines: Vec<_> = objects.remarks.iter().take(MOST).map(|remark| print::one_line(&remark.to_string())).collect();
    ensure!(
        lines.is_empty(),
        "{} could not be read, and may hold rules or protections of a host; correct or remove them: {}",
        if objects.remarks.len() == 1 { "1 object".to_owned() } else { format!("{} objects", objects.remarks.len()) },
        lines.join("; ")
    );
    Ok(())
}

/// Returns a line for each verdict.
fn told(verdicts: &[RowVerdict]) -> String {
    verdicts.iter().map(|verdict| verdict.to_string().replace(char::is_control, "") + "\n").collect()
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
    use clap::Parser as _;

    use super::*;
    use crate::check::read_text;

    #[test]
    fn objects_are_a_stream_that_can_be_read_again() {
        let ingress = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {ports: [{port: 80}]}\n---\n\
            apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: web}\nspec:\n  ingressClassName: nginx\n  \
            rules: [{host: a.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, \
            port: {number: 80}}}}]}}]\n";
        let objects = read_text(ingress);
        let options = Controller::default().options(&objects, true);
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
        let options = Controller::default().options(&objects, true);
        let migration = to_gateway(&objects.cluster, &options, &ObjectName::new("default", "ingress"), None);
        let error = ensure_found(&migration, &options.classes.controller).expect_err("no Ingress");
        assert!(error.to_string().contains("--controller-class"), "{error}");
    }

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: GatewayArgs,
    }

    const INGRESS: &str = "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {namespace: shop, name: web}\nspec:\n  \
                           ingressClassName: nginx\n  rules: [{host: a.test, http: {paths: [{path: /, pathType: Prefix, \
                           backend: {service: {name: web, port: {number: 80}}}}]}}]\n---\napiVersion: v1\nkind: \
                           Service\nmetadata: {namespace: shop, name: web}\nspec: {ports: [{port: 80}]}\n";
    const SETTINGS: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {namespace: edge, name: settings}\ndata: \
                            {whitelist-source-range: 10.0.0.0/8}\n";

    /// Runs the command over files with these texts, in a directory of their own.
    fn migrated(files: &[&str], line: &[&str]) -> Result<GatewayMigration> {
        let home = tempfile::tempdir().expect("a directory");
        for (number, text) in files.iter().enumerate() {
            std::fs::write(home.path().join(format!("{number}.yaml")), text).expect("written");
        }
        let home = home.path().display().to_string();
        migrate(Line::try_parse_from([&["gateway", "--from-dir", &home], line].concat()).expect("a command line").args)
    }

    /// A part that cannot be read may hold rules or protections of a host that others tell of.
    #[test]
    fn nothing_is_written_without_all_objects() {
        let broken = "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: [\n";
        for (files, expect) in [(&[INGRESS, broken][..], "1.yaml"), (&[INGRESS, INGRESS], "already defines it")] {
            let error = migrated(files, &[]).expect_err(expect).to_string();
            assert!(error.contains(expect), "{error}");
        }
        let error = migrated(&[INGRESS], &["--configmap", "edge/settings"]).expect_err("no settings").to_string();
        assert!(error.contains("edge/settings"), "{error}");
    }

    /// Settings protect hosts of any controller, and the command says if it read none.
    #[test]
    fn settings_are_read_or_told_of() {
        let own = INGRESS.replace("ingressClassName: nginx", "ingressClassName: xdp");
        let of_own = ["--ingress-class", "xdp", "--controller-class", "xdp-ingress.io/controller"];
        for (ingress, line) in [(INGRESS, &[][..]), (&own, &of_own)] {
            let text = told(&migrated(&[ingress, SETTINGS], line).expect("verdicts").verdicts);
            assert!(text.contains("left out settings"), "{text}");
            let line = [line, &["--configmap", "edge/settings"]].concat();
            let text = told(&migrated(&[ingress, SETTINGS], &line).expect("verdicts").verdicts);
            assert!(text.contains("left out host a.test") && text.contains("`whitelist-source-range`"), "{text}");
        }
    }

    #[test]
    fn names_move_no_cursor() {
        let hostile = INGRESS.replace(
            "name: web}\nspec:\n",
            "name: web, annotations: {\"nginx.ingress.kubernetes.io/a\\e[2J\": \"b\\e[1A\", \
             \"nginx.ingress.kubernetes.io/auth-realm\": \"c\\e[2J\"}}\nspec:\n",
        );
        let migration = migrated(&[&hostile], &[]).expect("verdicts");
        let text = told(&migration.verdicts) + &written(&migration).expect("YAML");
        assert!(text.contains("[2J"), "{text}");
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
    }
}
