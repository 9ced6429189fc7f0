//! The supported settings, as tables by topic: one row per key. They read values and report no problems.
//!
//! The keys are those of ingress-nginx, with the same meaning.

use super::{globals::Globals, row::Setting};

mod access;
mod access_log;
mod compression;
mod connections;
mod escalation;
mod fields;
mod paths;
mod pods;
mod redirects;
mod streams;
mod traces;
mod trust;

/// The tables by topic.
const TABLES: [&[Setting]; 15] = [
    access::SETTINGS,
    access_log::SETTINGS,
    compression::BROTLI,
    compression::GZIP,
    compression::SETTINGS,
    compression::ZSTD,
    connections::SETTINGS,
    escalation::SETTINGS,
    fields::SETTINGS,
    paths::SETTINGS,
    pods::SETTINGS,
    redirects::SETTINGS,
    streams::SETTINGS,
    traces::SETTINGS,
    trust::SETTINGS,
];

/// Returns every row, topic by topic.
fn all() -> impl Iterator<Item = &'static Setting> {
    TABLES.into_iter().flatten()
}

pub(super) fn find(name: &str) -> Option<&'static Setting> {
    all().find(|setting| setting.name == name)
}

pub(super) fn apply_nginx_defaults(globals: &mut Globals) {
    for Setting { default, nginx, apply, .. } in all() {
        if nginx != default {
            // If a default could not be read, the built-in one would stay; the table's test reads each.
            apply(nginx, globals).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::translate::Classes;
    use ingress_model::MediaTypes;

    #[test]
    fn tables_are_sorted_and_defaults_match_the_model() {
        let defaults = Globals::of(&Classes::default());
        for Setting { name, default, nginx, apply, .. } in all() {
            let mut globals = defaults.clone();
            assert_eq!(apply(default, &mut globals), Ok(()), "{name}");
            assert_eq!(globals, defaults, "{name}");
            assert_eq!(apply(nginx, &mut globals), Ok(()), "{name}");
        }
        for table in TABLES {
            assert!(table.is_sorted_by_key(|setting| setting.name));
        }
    }

    /// `UPDATE_EXPECT=1` rewrites the page.
    #[test]
    fn the_page_of_settings_lists_the_tables() {
        let mut page = "# Settings for all hosts\n\n\
            Settings are keys of two ConfigMaps: the one of `--configmap`, and the one that `spec.parameters` of the oldest\n\
            served IngressClass names (`kind: ConfigMap`, `scope: Namespace`). The second takes precedence, key by key. Other\n\
            keys of ingress-nginx are accepted, and an event reports each one with an effect there. The second default\n\
            applies with `--controller-class k8s.io/ingress-nginx`.\n\n\
            | key | default | with ingress-nginx's class | meaning |\n|---|---|---|---|\n"
            .to_owned();
        let rows: BTreeMap<_, _> = all().map(|setting| (setting.name, setting)).collect();
        assert_eq!(rows.len(), all().count(), "each key once");
        for Setting { name, default, nginx, meaning, apply: _ } in rows.values() {
            let quote = |value: &str| if value.is_empty() { "none".to_owned() } else { format!("`{value}`") };
            page += &format!("| `{name}` | {} | {} | {meaning} |\n", quote(default), quote(nginx));
        }
        expect_test::expect_file!["../../../../../../../docs/settings.md"].assert_eq(&page);
    }

    #[test]
    fn every_setting_changes_something() {
        for Setting { name, default, apply, .. } in all() {
            let value = match *default {
                "true" => "false",
                "false" => "true",
                "308" => "302",
                "GET" => "POST",
                "rd" => "back",
                "200 202 401 5m" => "200 1m",
                "/.well-known/acme-challenge" => "/a",
                "TLSv1.2 TLSv1.3" => "TLSv1.3",
                "503" => "429",
                "round_robin" => "ewma",
                "node" => "cluster",
                "paths" => "open",
                "error" => "off",
                "keep-unchanged" => "reject-request",
                MediaTypes::DEFAULT => "text/css",
                "1" | "3" | "4" => "5",
                "X-Forwarded-For" => "X-Client",
                "AlwaysOn" => "AlwaysOff",
                "0.01" => "0.5",
                "" => match *name {
                    "add-headers" | "proxy-set-headers" => "a/b",
                    "custom-http-errors" => "404,503",
                    "escalate-also" => "credentials, limit",
                    "gzip-disable" => "MSIE",
                    "host-sharing-grants" => "a, b",
                    "global-auth-cache-key" => "$http_x",
                    "global-auth-request-redirect" | "global-auth-signin" | "global-auth-url" => "https://$host/x",
                    "no-tls-redirect-locations" => "/a, /b",
                    "log-format-upstream" | "opentelemetry-operation-name" => "$host",
                    "otlp-collector-host" => "collector.otel",
                    "skip-access-log-urls" => "/a",
                    "block-cidrs" | "denylist-source-range" | "proxy-real-ip-cidr" | "whitelist-source-range" => {
                        "10.0.0.0/8"
                    }
                    _ => "X-A, X-B",
                },
                _ => "42",
            };
            let mut globals = Globals::of(&Classes::default());
            assert_eq!(apply(value, &mut globals), Ok(()), "{name}");
            assert_ne!(globals, Globals::of(&Classes::default()), "{name}");
        }
    }

    /// Keys that take nearly any text.
    const TEXTS: [&str; 3] = ["block-referers", "block-user-agents", "gzip-disable"];

    #[test]
    fn invalid_values_change_nothing() {
        for Setting { name, apply, .. } in all() {
            let values = if TEXTS.contains(name) {
                ["~(", "~*a(", "~[", "~*)"]
            } else {
                ["no $pe", "-1$?", "9999999999999$9999999:", "5t$\u{e9}"]
            };
            for value in values {
                let mut globals = Globals::of(&Classes::default());
                assert!(apply(value, &mut globals).is_err(), "{name} {value}");
                assert_eq!(globals, Globals::of(&Classes::default()), "{name} {value}");
            }
        }
    }
}
