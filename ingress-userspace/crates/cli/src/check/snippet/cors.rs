//! Preflights of CORS that a snippet answers by itself.

use super::{
    Directive,
    condition::Condition,
    convert::{Converter, Done},
    rules::Answer,
};

// === impl Converter ===

impl Converter<'_> {
    /// Returns whether a block answers CORS preflights.
    pub(super) fn is_preflight(&self, conditions: &[Condition], block: &[Directive]) -> bool {
        let is_own = |field: &str| {
            let name = field.split(':').next().unwrap_or_default().trim().to_ascii_lowercase();
            name.starts_with("access-control-") || name == "content-length" || name == "content-type"
        };
        let is_field = |directive: &Directive| match directive.name.as_str() {
            "add_header" => directive.arguments.first().is_some_and(|name| is_own(name)),
            "more_set_headers" => {
                !directive.arguments.is_empty() && directive.arguments.iter().all(|field| is_own(field))
            }
            _ => false,
        };
        let is_end = |directive: &Directive| {
            directive.name == "return" && directive.arguments.first().is_some_and(|status| status.starts_with("20"))
        };
        let is_options = |condition: &Condition| *condition == Condition::new("method", "=", "OPTIONS");
        conditions.len() == 1
            && conditions.iter().all(is_options)
            && block.iter().any(is_field)
            && block.iter().any(is_end)
            && block.iter().all(|directive| is_field(directive) || is_end(directive))
    }

    /// Converts fields of preflights into the annotations of CORS.
    pub(super) fn preflight(&mut self, block: &[Directive]) -> Done {
        let names_origin = |argument: &String| argument.to_ascii_lowercase().starts_with("access-control-allow-origin");
        if !block.iter().any(|directive| directive.arguments.iter().any(names_origin)) {
            if self.facts.has("enable-cors") {
                return Err("the Ingress has `enable-cors` already".to_owned());
            }
            let difference = Some("the answer has no field of CORS, which browsers ignore without an origin");
            let answer = Answer { text: "204".to_owned(), difference };
            return self.rule(&[Condition::new("method", "=", "OPTIONS")], &answer);
        }
        let mut credentials = "false".to_owned();
        for Directive { name, arguments, .. } in block {
            let fields: Vec<_> = match (name.as_str(), &**arguments) {
                ("more_set_headers", fields) => fields.iter().filter_map(|field| field.split_once(':')).collect(),
                ("add_header", [name, value, ..]) => vec![(name.as_str(), value.as_str())],
                _ => Vec::new(),
            };
            for (name, value) in fields {
                self.preflight_field(name.trim(), value.trim(), &mut credentials)?;
            }
        }
        self.set("cors-allow-credentials", credentials)?;
        self.differ("other responses have the fields, too");
        self.set("enable-cors", "true")
    }

    fn preflight_field(&mut self, name: &str, value: &str, credentials: &mut String) -> Done {
        let value = self.expand(value)?;
        if value.contains('$') {
            return Err(format!("`{name}` depends on the request; set `cors-allow-origin` to the origins"));
        }
        match name.to_ascii_lowercase().as_str() {
            "access-control-allow-origin" => self.set("cors-allow-origin", value),
            "access-control-allow-methods" => self.set("cors-allow-methods", value),
            "access-control-allow-headers" => self.set("cors-allow-headers", value),
            "access-control-expose-headers" => self.set("cors-expose-headers", value),
            "access-control-max-age" => self.set("cors-max-age", value),
            "access-control-allow-credentials" => {
                *credentials = value;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
