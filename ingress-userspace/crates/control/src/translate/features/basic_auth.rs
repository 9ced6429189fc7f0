//! Passwords of clients (RFC 7617), and the Secrets that hold the users.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::Secret;

use super::{
    row::{Row, key},
    scope::{Refusal, Scope},
};
use crate::{change::Kind, outcome::Reason, translate::text::shorten};
use ingress_model::{Basic, Users};

/// Key of the Secret with the htpasswd file.
const FILE: &str = "auth";

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedBasicAuth>] = &[
    key("auth-realm", "realm that browsers show when they prompt for a password")
        .default("Authentication Required")
        .reads(|value, parsed| {
            let quotable = |c: char| !c.is_control();
            if !value.chars().all(quotable) || value.len() > 256 {
                return Err("a text of at most 256 bytes without control characters".into());
            }
            value.clone_into(&mut parsed.realm);
            Ok(())
        }),
    key(
        "auth-secret",
        "a Secret with users and hashes of their passwords (bcrypt, SHA-crypt, apr1, MD5-crypt, `{SHA}`, `{SSHA}`); \
         clients must authenticate as one of these users. It applies without `auth-type`, too",
    )
    .naming(Kind::Secret)
    .or_refuse()
    .reads(|value, parsed| {
        parsed.secret = Some(value.to_owned());
        Ok(())
    }),
    key(
        "auth-secret-type",
        "format of `auth-secret`: `auth-file`, an htpasswd file under the key `auth`, or `auth-map`, one key with a \
         hash for each user",
    )
    .default("auth-file")
    .or_refuse()
    .reads(|value, parsed| {
        parsed.layout = match value {
            "auth-file" => Layout::File,
            "auth-map" => Layout::Map,
            _ => return Err("`auth-file` or `auth-map`".into()),
        };
        Ok(())
    }),
    key("auth-type", "`basic`: clients must authenticate by name and password (RFC 7617); pods do not get these")
        .differs("`digest` is refused, and its rules answer 503")
        .or_refuse()
        .reads(|value, parsed| {
            match value {
                "basic" => parsed.is_wanted = true,
                "digest" => {
                    return Err("`basic`, with TLS (digest is refused: it needs hashes as good as passwords)".into());
                }
                _ => return Err("`basic`".into()),
            }
            Ok(())
        }),
];

/// The values of `auth-type` and the keys that belong to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParsedBasicAuth {
    is_wanted: bool,
    secret: Option<String>,
    layout: Layout,
    realm: String,
}

/// Layout of the users in a Secret.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Layout {
    /// The text of an htpasswd file, under `auth`.
    #[default]
    File,
    /// Each hash under the name of its user.
    Map,
}

impl Default for ParsedBasicAuth {
    fn default() -> Self {
        Self { is_wanted: false, secret: None, layout: Layout::default(), realm: "Authentication Required".into() }
    }
}

// === impl ParsedBasicAuth ===

impl ParsedBasicAuth {
    /// Returns the passwords that clients must have, if any, or the reason why they cannot be checked.
    pub(super) fn build(self, scope: &mut Scope<'_, '_>) -> Result<Option<Basic>, Refusal> {
        let is_wanted = self.is_wanted || self.secret.is_some();
        is_wanted.then(|| self.basic(scope)).transpose()
    }

    fn basic(&self, scope: &mut Scope<'_, '_>) -> Result<Basic, Refusal> {
        let Self { is_wanted: _, secret, layout, realm } = self;
        let Some(value) = secret else {
            let message = "annotation `auth-type` requires a password, but there is no `auth-secret`; its rules answer 503, name a Secret";
            return Err((Reason::InvalidAnnotation, message.into()));
        };
        let name = scope.own("auth-secret", value, "Secret")?;
        let Some(stored) = scope.lookup.secret(&name) else {
            let message = format!("secret `{name}` of `auth-secret` does not exist; its rules answer 503, create it");
            return Err((Reason::SecretNotFound, message));
        };
        let data = data(&stored.object);
        let (users, problems) = match layout {
            Layout::File => {
                let Some(text) = data.get(FILE) else {
                    let message = format!(
                        "secret `{name}` of `auth-secret` has no `{FILE}` with the text of an htpasswd file; its rules answer 503, add it or set `auth-secret-type: auth-map`"
                    );
                    return Err((Reason::InvalidCredentials, message));
                };
                let (users, problems) = Users::of_file(text);
                let line = |(number, error)| format!("line {number} of `{FILE}`: {error}");
                (users, problems.into_iter().map(line).collect::<Vec<_>>())
            }
            Layout::Map => {
                let (users, problems) = Users::of_entries(data.iter().map(|(name, hash)| (*name, &**hash)));
                let user = |(name, error)| format!("user `{}`: {error}", shorten(name));
                (users, problems.into_iter().map(user).collect())
            }
        };
        for problem in problems.iter().take(MAX_REPORTS) {
            let message = format!("{problem}; that user has no access until then");
            scope.context().report(&stored.refer(Kind::Secret, &name), Reason::InvalidCredentials, message);
        }
        if users.is_empty() {
            let message = format!("secret `{name}` of `auth-secret` has no user; its rules answer 503, add one");
            return Err((Reason::InvalidCredentials, message));
        }
        let malformed =
            || (Reason::InvalidAnnotation, "annotation `auth-realm` is not a valid header field value".to_owned());
        Basic::new(realm, &scope.name.namespace, Arc::new(users)).ok_or_else(malformed)
    }
}

/// Maximum number of problems reported per Secret. If the file is no htpasswd file at all, a report for every line
/// would not help.
const MAX_REPORTS: usize = 5;

/// Returns the content of a Secret as text. The API server lets `stringData` overwrite `data`.
fn data(secret: &Secret) -> BTreeMap<&str, Cow<'_, str>> {
    let stored = secret.data.iter().flatten().map(|(key, value)| (key.as_str(), String::from_utf8_lossy(&value.0)));
    let written = secret.string_data.iter().flatten().map(|(key, value)| (key.as_str(), value.as_str().into()));
    stored.chain(written).collect()
}
