//! The description of the API for programs, from docs/openapi.yaml.

use serde_json::Value;

use super::ApiError;

const YAML: &str = include_str!("../../../../../../../docs/openapi.yaml");

/// Returns the document.
///
/// # Errors
/// Fails if the document of this build is no YAML, which a test rules out.
pub(super) fn document() -> Result<Value, ApiError> {
    serde_saphyr::from_str(YAML).map_err(|_invalid| ApiError::Unknown("openapi.json".to_owned()))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use http::Method;
    use serde_json::json;

    use super::*;
    use crate::daemon::admin::{
        Answers, Metrics,
        api::PREFIX,
        stream,
        testing::{Fixed, ask},
    };

    fn get(path: &str) -> Value {
        let answers = Answers::new(Arc::new(Fixed::with(Ok(()))), Metrics::All);
        let (_, body) = ask(&answers, Method::GET, path);
        serde_json::from_str(&body).expect("JSON")
    }

    /// Returns names of parameters in the query by path, as a document states them.
    fn parameters(document: &Value) -> BTreeMap<String, Vec<String>> {
        let paths = document["paths"].as_object().expect("paths").iter();
        let named = paths.map(|(path, item)| {
            let parameters = item["get"]["parameters"].as_array().cloned().unwrap_or_default();
            let names = parameters.iter().filter_map(|parameter| match parameter["$ref"].as_str() {
                Some(reference) => reference.rsplit('/').next().map(str::to_owned),
                None => (parameter["in"] == "query").then(|| parameter["name"].as_str().expect("a name").to_owned()),
            });
            (path.clone(), names.collect())
        });
        named.collect()
    }

    /// Forbids fields that a schema does not name, so that none is left out of the document.
    fn close(schema: &mut Value) {
        match schema {
            Value::Object(fields) => {
                fields.values_mut().for_each(close);
                let has_all = fields.contains_key("properties") && !fields.contains_key("additionalProperties");
                if has_all && fields.get("required") != Some(&json!(["items", "total", "offset", "limit"])) {
                    fields.insert("unevaluatedProperties".to_owned(), json!(false));
                }
            }
            Value::Array(items) => items.iter_mut().for_each(close),
            _ => {}
        }
    }

    #[test]
    fn the_document_names_each_resource_with_its_parameters() {
        let index = get(PREFIX);
        let resources = index["resources"].as_array().expect("a list").iter();
        let mut expected: BTreeMap<String, Vec<String>> = resources
            .map(|resource| {
                let names = resource["parameters"].as_array().expect("a list").iter();
                let names = names.map(|name| name.as_str().expect("text").to_owned());
                (resource["path"].as_str().expect("text").to_owned(), names.collect())
            })
            .collect();
        expected.insert(PREFIX.to_owned(), Vec::new());
        assert_eq!(parameters(&document().expect("YAML")), expected);
    }

    #[test]
    fn each_answer_has_the_form_that_the_document_states() {
        let mut document = document().expect("YAML");
        close(&mut document["components"]["schemas"]);
        let paths = document["paths"].as_object().expect("paths").clone();
        let mut checked = 0;
        for (path, item) in paths {
            let Some(schema) = item["get"]["responses"]["200"]["content"].get("application/json") else { continue };
            let mut schema = schema["schema"].clone();
            close(&mut schema);
            // References are relative to the document.
            schema["components"] = document["components"].clone();
            let schema = jsonschema::validator_for(&schema).expect("a schema");
            let concrete = match &*path {
                "/api/v1/explain" => vec![
                    "/api/v1/explain?url=https://web.test/app".to_owned(),
                    "/api/v1/explain?url=http://web.test/%2500".to_owned(),
                ],
                path => vec![path.replace("{host}", "web.test")],
            };
            for path in concrete {
                let answer = get(&path);
                let errors: Vec<_> = schema.iter_errors(&answer).map(|error| error.to_string()).collect();
                assert!(errors.is_empty(), "{path}: {errors:?} in {answer}");
                assert!(
                    !schema.is_valid(&json!({ "else": 1 }))
                        || path.ends_with("openapi.json")
                        || path.ends_with("drops"),
                    "{path}: the schema takes anything"
                );
                checked += 1;
            }
        }
        assert_eq!(checked, 17);
    }

    #[test]
    fn events_of_the_stream_have_the_form_that_the_document_states() {
        let mut document = document().expect("YAML");
        close(&mut document["components"]["schemas"]);
        let mut schema = document["components"]["schemas"]["StreamState"].clone();
        schema["components"] = document["components"].clone();
        let schema = jsonschema::validator_for(&schema).expect("a schema");
        let source = Arc::new(Fixed::with(Ok(())));
        let event = stream::states(source)();
        let data = event.lines().find_map(|line| line.strip_prefix("data: ")).expect("data");
        let state: Value = serde_json::from_str(data).expect("JSON");
        let errors: Vec<_> = schema.iter_errors(&state).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{errors:?} in {state}");
    }
}
