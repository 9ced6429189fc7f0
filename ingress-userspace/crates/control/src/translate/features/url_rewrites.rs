//! Rewriting of redirects and cookies in responses of pods.

use std::sync::Arc;

use super::{
    row::{Row, key},
    scope::Scope,
};
use crate::{
    outcome::Reason,
    translate::{
        compiled_expressions::Cost,
        values::{Expected, Read, location},
    },
};
use ingress_model::{ExpressionCost, RewriteSource, Template, UrlRewrite, UrlRewriteError, UrlRewrites, two_arguments};

const LIMITS: &str = "look-around, back references and named groups are refused, and so are variables that are not listed \
     for annotations";

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedUrlRewrites>] = &[
    key(
        "proxy-cookie-domain",
        "`OLD NEW`: cookies of pods get the domain NEW instead of OLD, which may be an expression behind `~`; `off` for \
         none. Variables and groups are allowed in NEW",
    )
    .differs(LIMITS)
    .default("off")
    .reads(|value, parsed| parsed.cookie_domain(value)),
    key(
        "proxy-cookie-path",
        "`OLD NEW`: in paths of the cookies of pods, NEW replaces OLD at the beginning, as in `/ /app/`. OLD may be an \
         expression behind `~`, or behind `~*` without regard to case. A NEW with blanks is written in quotation marks. \
         `off` for none",
    )
    .differs(LIMITS)
    .default("off")
    .reads(|value, parsed| parsed.cookie_path(value)),
    key(
        "proxy-redirect-from",
        "beginning of `Location` and of the URL in `Refresh` of pods that `proxy-redirect-to` replaces, or an expression \
         behind `~`; `default` and `off` replace none",
    )
    .differs(LIMITS)
    .default("off")
    .reads(|value, parsed| parsed.redirect_from(value)),
    key(
        "proxy-redirect-to",
        "text in place of `proxy-redirect-from`, with variables and groups; a path becomes a URL of the host. `off` \
         replaces none",
    )
    .differs(LIMITS)
    .default("off")
    .reads(|value, parsed| parsed.redirect_to(value)),
];

/// Sorted by name.
pub(super) const DEFAULTS: &[Row<ParsedUrlRewrites>] = &[
    key("proxy-cookie-domain", "see the annotation `proxy-cookie-domain`")
        .differs(LIMITS)
        .default("off")
        .reads(|value, parsed| parsed.cookie_domain(value)),
    key("proxy-cookie-path", "see the annotation `proxy-cookie-path`")
        .differs(LIMITS)
        .default("off")
        .reads(|value, parsed| parsed.cookie_path(value)),
    key("proxy-redirect-from", "see the annotation `proxy-redirect-from`")
        .differs(LIMITS)
        .default("off")
        .reads(|value, parsed| parsed.redirect_from(value)),
    key("proxy-redirect-to", "see the annotation `proxy-redirect-to`")
        .differs(LIMITS)
        .default("off")
        .reads(|value, parsed| parsed.redirect_to(value)),
];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParsedUrlRewrites {
    cookie_domain: Option<UrlRewrite>,
    cookie_path: Option<UrlRewrite>,
    redirect_from: Option<RewriteSource>,
    redirect_to: Option<Template>,
}

// === impl ParsedUrlRewrites ===

impl ParsedUrlRewrites {
    fn cookie_domain(&mut self, value: &str) -> Read {
        self.cookie_domain = match value {
            "" | "off" => None,
            _ => Some(two_arguments(value).and_then(|(from, to)| UrlRewrite::of_domain(&from, &to)).map_err(old_new)?),
        };
        Ok(())
    }

    fn cookie_path(&mut self, value: &str) -> Read {
        self.cookie_path = match value {
            "" | "off" => None,
            _ => Some(two_arguments(value).and_then(|(from, to)| UrlRewrite::new(&from, &to)).map_err(old_new)?),
        };
        Ok(())
    }

    fn redirect_from(&mut self, value: &str) -> Read {
        self.redirect_from = match value {
            "" | "off" | "default" => None,
            _ => Some(
                RewriteSource::of_url(value).map_err(|error| format!("the beginning of a URL, or `off` ({error})"))?,
            ),
        };
        Ok(())
    }

    fn redirect_to(&mut self, value: &str) -> Read {
        self.redirect_to = match value {
            "" | "off" => None,
            _ => Some(location(value)?),
        };
        Ok(())
    }

    fn redirect(&self) -> Option<Result<UrlRewrite, UrlRewriteError>> {
        Some(UrlRewrite::with(self.redirect_from.clone()?, self.redirect_to.clone()?))
    }

    /// Returns the rewritings, if there are any.
    pub(super) fn build(&self) -> Option<Arc<UrlRewrites>> {
        let Self { cookie_domain, cookie_path, redirect_from: _, redirect_to: _ } = self;
        let redirect = self.redirect().and_then(Result::ok);
        let rewrites = UrlRewrites { redirect, cookie_domain: cookie_domain.clone(), cookie_path: cookie_path.clone() };
        (!rewrites.is_empty()).then(|| Arc::new(rewrites))
    }

    /// Reports parts that do not fit each other, and returns the cost of the expressions.
    pub(super) fn check(&self, scope: &mut Scope<'_, '_>) -> Cost {
        if let Some(Err(error)) = self.redirect() {
            let message = format!(
                "annotation `proxy-redirect-to` does not fit `proxy-redirect-from` ({error}); `Location` stays as it is, \
                 correct one of them"
            );
            scope.report(Reason::InvalidAnnotation, message);
        }
        let ExpressionCost { count, bytes } = self.build().map_or_else(ExpressionCost::default, |built| built.cost());
        Cost { count, bytes }
    }
}

fn old_new(error: UrlRewriteError) -> Expected {
    format!("an old text and a new one, or `off` ({error})").into()
}
