//! The settings that are honoured, as a table: one row per key. It reads values and reports nothing.
//!
//! Keys are ingress-nginx's, and mean here what they mean there.

use std::{ops::RangeInclusive, str::FromStr, time::Duration};

use super::Globals;
use crate::model::PathMatch;

/// One key.
#[derive(Debug)]
pub(super) struct Setting {
    pub(super) name: &'static str,
    /// What stands where the key is not set, as it would be written.
    pub(super) default: &'static str,
    /// The same for classes that are taken over from ingress-nginx.
    pub(super) nginx: &'static str,
    /// For people: what it sets, with its unit and limits.
    pub(super) meaning: &'static str,
    /// Sets the value, or tells what to write instead.
    pub(super) apply: fn(&str, &mut Globals) -> Result<(), &'static str>,
}

/// Sorted by name.
const SETTINGS: [Setting; 14] = [
    Setting {
        name: "client-body-timeout",
        default: "60",
        nginx: "60",
        meaning: "longest pause within a request body, and longest time that a client takes no byte of a response, in seconds",
        apply: |value, globals| seconds(value, &mut globals.settings.stall_timeout),
    },
    Setting {
        name: "client-header-timeout",
        default: "10",
        nginx: "60",
        meaning: "time for the head of a request from its first byte to its last, in seconds",
        apply: |value, globals| seconds(value, &mut globals.settings.head_timeout),
    },
    Setting {
        name: "force-ssl-redirect",
        default: "false",
        nginx: "false",
        meaning: "whether hosts without TLS are redirected to it, too",
        apply: |value, globals| boolean(value, &mut globals.force_ssl_redirect),
    },
    Setting {
        name: "http-redirect-code",
        default: "308",
        nginx: "308",
        meaning: "status of redirects to HTTPS: 301, 302, 307 or 308",
        apply: |value, globals| status(value, &mut globals.redirect_status),
    },
    Setting {
        name: "http2-max-concurrent-streams",
        default: "128",
        nginx: "128",
        meaning: "streams open at one time on one HTTP/2 connection, from 1 to 10000",
        apply: |value, globals| {
            number(value, 1..=10_000, &mut globals.settings.streams_max).ok_or("a number from 1 to 10000")
        },
    },
    Setting {
        name: "keep-alive",
        default: "75",
        nginx: "75",
        meaning: "how long a connection without a request in flight stays open, in seconds",
        apply: |value, globals| seconds(value, &mut globals.settings.idle_timeout),
    },
    Setting {
        name: "no-tls-redirect-locations",
        default: "",
        nginx: "",
        meaning: "paths, separated by commas, that are not redirected to HTTPS, nor what is below them; those of ACME challenges never are",
        apply: prefixes,
    },
    Setting {
        name: "proxy-connect-timeout",
        default: "5",
        nginx: "5",
        meaning: "time to open a connection to an endpoint, in seconds",
        apply: |value, globals| seconds(value, &mut globals.settings.connect_timeout),
    },
    Setting {
        name: "proxy-read-timeout",
        default: "60",
        nginx: "60",
        meaning: "longest silence of an endpoint before and within a response, in seconds",
        apply: |value, globals| seconds(value, &mut globals.settings.upstream_read_timeout),
    },
    Setting {
        name: "proxy-send-timeout",
        default: "60",
        nginx: "60",
        meaning: "longest time that an endpoint takes no byte of a request, in seconds",
        apply: |value, globals| seconds(value, &mut globals.settings.upstream_send_timeout),
    },
    Setting {
        name: "ssl-redirect",
        default: "true",
        nginx: "true",
        meaning: "whether hosts with TLS are redirected to it",
        apply: |value, globals| boolean(value, &mut globals.ssl_redirect),
    },
    Setting {
        name: "upstream-keepalive-connections",
        default: "512",
        nginx: "320",
        meaning: "idle connections kept per endpoint and worker, from 0 to 65535",
        apply: |value, globals| {
            number(value, 0..=65_535, &mut globals.settings.upstream_idle_per_endpoint)
                .ok_or("a number from 0 to 65535")
        },
    },
    Setting {
        name: "upstream-keepalive-timeout",
        default: "55",
        nginx: "60",
        meaning: "how long an idle connection to an endpoint is kept, in seconds",
        apply: |value, globals| seconds(value, &mut globals.settings.upstream_idle_timeout),
    },
    Setting {
        name: "use-http2",
        default: "true",
        nginx: "true",
        meaning: "whether HTTP/2 is offered in TLS handshakes",
        apply: |value, globals| boolean(value, &mut globals.settings.http2),
    },
];

pub(super) fn find(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}

pub(super) fn apply_nginx_defaults(globals: &mut Globals) {
    for Setting { default, nginx, apply, .. } in &SETTINGS {
        if nginx != default {
            // A default that could not be read would leave ours; the table's test reads each.
            apply(nginx, globals).unwrap_or_default();
        }
    }
}

/// A number of seconds, up to a week; 0 has a meaning of its own for some keys of nginx, which none has here.
fn seconds(value: &str, field: &mut Duration) -> Result<(), &'static str> {
    let mut seconds = 0;
    number(value.strip_suffix('s').unwrap_or(value), 1..=604_800, &mut seconds)
        .ok_or("a number of seconds from 1 to 604800")?;
    *field = Duration::from_secs(seconds);
    Ok(())
}

fn boolean(value: &str, field: &mut bool) -> Result<(), &'static str> {
    *field = match value {
        "true" => true,
        "false" => false,
        _ => return Err("\"true\" or \"false\""),
    };
    Ok(())
}

fn status(value: &str, field: &mut u16) -> Result<(), &'static str> {
    *field = match value {
        "301" => 301,
        "302" => 302,
        "307" => 307,
        "308" => 308,
        _ => return Err("301, 302, 307 or 308"),
    };
    Ok(())
}

fn prefixes(value: &str, globals: &mut Globals) -> Result<(), &'static str> {
    let paths = value.split(',').map(str::trim).filter(|path| !path.is_empty()).map(PathMatch::prefix);
    let Ok(paths) = paths.collect::<Result<Vec<_>, _>>() else { return Err("paths, separated by commas") };
    globals.redirect_except = paths.into();
    Ok(())
}

fn number<T: FromStr + PartialOrd>(value: &str, range: RangeInclusive<T>, field: &mut T) -> Option<()> {
    *field = value.parse().ok().filter(|number| range.contains(number))?;
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Classes;

    #[test]
    fn defaults_of_the_table_are_those_of_the_model() {
        let defaults = Globals::of(&Classes::default());
        for Setting { name, default, nginx, apply, .. } in &SETTINGS {
            let mut globals = defaults.clone();
            assert_eq!(apply(default, &mut globals), Ok(()), "{name}");
            assert_eq!(globals, defaults, "{name}");
            assert_eq!(apply(nginx, &mut globals), Ok(()), "{name}");
        }
        assert!(SETTINGS.is_sorted_by_key(|setting| setting.name));
    }

    /// `UPDATE_EXPECT=1` rewrites the page.
    #[test]
    fn the_page_of_settings_lists_the_table() {
        let mut page = "# Settings for all hosts\n\n\
            Keys of the ConfigMap that `--configmap` names, and of the one that `spec.parameters` of our oldest IngressClass\n\
            names (`kind: ConfigMap`, `scope: Namespace`), which goes before it key by key. Other keys of ingress-nginx are\n\
            accepted, and each that asks for something is reported. The second default holds for `--controller-class\n\
            k8s.io/ingress-nginx`.\n\n\
            | key | default | with ingress-nginx's class | meaning |\n|---|---|---|---|\n"
            .to_owned();
        for Setting { name, default, nginx, meaning, apply: _ } in &SETTINGS {
            let quote = |value: &str| if value.is_empty() { "none".to_owned() } else { format!("`{value}`") };
            page += &format!("| `{name}` | {} | {} | {meaning} |\n", quote(default), quote(nginx));
        }
        expect_test::expect_file!["../../../../../docs/settings.md"].assert_eq(&page);
    }

    #[test]
    fn every_setting_changes_something() {
        for Setting { name, default, apply, .. } in &SETTINGS {
            let value = match *default {
                "true" => "false",
                "false" => "true",
                "308" => "302",
                "" => "/a, /b",
                _ => "42",
            };
            let mut globals = Globals::of(&Classes::default());
            assert_eq!(apply(value, &mut globals), Ok(()), "{name}");
            assert_ne!(globals, Globals::of(&Classes::default()), "{name}");
        }
    }

    #[test]
    fn values_without_a_meaning_change_nothing() {
        for Setting { name, apply, .. } in &SETTINGS {
            for value in ["nope", "-1", "99999999999999999999", "5m"] {
                let mut globals = Globals::of(&Classes::default());
                assert!(apply(value, &mut globals).is_err(), "{name} {value}");
                assert_eq!(globals, Globals::of(&Classes::default()), "{name} {value}");
            }
        }
    }
}
