//! The catalogue of operations, and the schemas of problems, which must say the same.

use crate::app::TestApp;
use reqwest::Method;
use serde_json::{Value, json};
use sparsetune::domain::Op;
use sparsetune::domain::catalog::operation::{Field, Kind, fields};
use sparsetune::http::OPENAPI;
use std::collections::BTreeSet;

fn contract() -> Value {
    serde_yaml_ng::from_str(OPENAPI).unwrap()
}

/// The members of a schema, those of its `$ref` below its own.
fn resolved(contract: &Value, schema: &Value) -> Value {
    let Some(name) = schema["$ref"].as_str() else { return schema.clone() };
    let target = contract.pointer(name.trim_start_matches('#')).unwrap();
    let mut merged = resolved(contract, target);
    let own = schema.as_object().unwrap().iter().filter(|(name, _)| *name != "$ref");
    merged.as_object_mut().unwrap().extend(own.map(|(name, value)| (name.clone(), value.clone())));
    merged
}

/// Type, range and values, as a schema has to state them.
fn kind_of(field: &Field) -> Value {
    match field.kind {
        Kind::Integer { min, max, .. } => {
            json!({"type": "integer", "minimum": min, "maximum": max})
        }
        Kind::Boolean => json!({"type": "boolean"}),
        Kind::Choice(choices) => {
            let names: Vec<&str> = choices.iter().map(|choice| choice.name).collect();
            json!({"type": "string", "enum": names})
        }
    }
}

fn stated(schema: &Value, members: &[&str]) -> Value {
    let members = members.iter().filter(|name| !schema[**name].is_null());
    members.map(|name| ((*name).to_owned(), schema[*name].clone())).collect()
}

const KIND: [&str; 4] = ["type", "minimum", "maximum", "enum"];

#[test]
fn schemas_of_problems_are_the_descriptors() {
    let contract = contract();
    let schemas = &contract["components"]["schemas"];
    let every = schemas["TuningProblem"]["oneOf"].as_array().unwrap();
    let mut documented = Vec::new();
    for schema in every {
        let schema = resolved(&contract, schema);
        let properties = schema["properties"].as_object().unwrap();
        let op: Op = properties["op"]["const"].as_str().unwrap().parse().unwrap();
        documented.push(op);
        let fields = op.descriptor().fields;
        let names: BTreeSet<&str> = fields.iter().map(|field| field.name).chain(["op"]).collect();
        assert_eq!(properties.keys().map(String::as_str).collect::<BTreeSet<_>>(), names, "{op}");
        let needed = fields.iter().filter(|field| field.default.is_none()).map(|field| field.name);
        let needed: Vec<&str> = ["op"].into_iter().chain(needed).collect();
        assert_eq!(schema["required"], json!(needed), "{op}");
        assert_eq!(schema["additionalProperties"], false, "{op}");
        for field in fields {
            let property = resolved(&contract, &properties[field.name]);
            assert_eq!(stated(&property, &KIND), kind_of(field), "{op}.{}", field.name);
            let default = property.get("default").cloned();
            assert_eq!(default, field.default.map(|value| json!(value)), "{op}.{}", field.name);
        }
    }
    assert_eq!(documented, Op::ALL);
    assert_eq!(schemas["Op"]["enum"], json!(Op::ALL));
}

#[test]
fn parameters_of_lookups_are_the_descriptors() {
    let contract = contract();
    let parameters = contract["paths"]["/v1/plans"]["get"]["parameters"].as_array().unwrap();
    let named = parameters.iter().filter(|parameter| parameter["name"].is_string());
    let names: BTreeSet<&str> =
        named.clone().map(|parameter| parameter["name"].as_str().unwrap()).collect();
    let others = ["op", "matrix", "device", "l2", "neighbour", "predicted"];
    let all = fields().iter().map(|field| field.name).chain(others);
    assert_eq!(names, all.collect());
    for field in fields() {
        let parameter = named.clone().find(|parameter| parameter["name"] == field.name).unwrap();
        assert_ne!(parameter["required"], true, "{}: it depends on op", field.name);
        let schema = resolved(&contract, &parameter["schema"]);
        assert_eq!(stated(&schema, &KIND), kind_of(field), "{}", field.name);
        let said = parameter["description"].as_str().unwrap();
        match field.default {
            None => assert!(said.contains("required"), "{}: {said}", field.name),
            Some(value) => {
                assert!(said.contains(&format!("{value} when absent")), "{}: {said}", field.name)
            }
        }
    }
}

#[tokio::test]
async fn operations_are_listed_with_their_fields() {
    let app = TestApp::new().await;
    let listed = app.json("/v1/operations").await;
    let operations = listed["operations"].as_array().unwrap();
    let names: Vec<&str> = operations.iter().map(|op| op["name"].as_str().unwrap()).collect();
    assert_eq!(names, Op::ALL.map(Op::name));
    let spmm = &operations[0];
    assert_eq!(spmm["fields"][0]["name"], "n");
    assert_eq!(spmm["fields"][0]["required"], true);
    assert_eq!(spmm["fields"][0]["tuned_maximum"], 65_536);
    assert_eq!(spmm["fields"][2]["default"], "row");
    assert_eq!(spmm["fields"][2]["choices"][1]["name"], "col");
    let kernels = spmm["families"].as_array().unwrap();
    let row_split = kernels.iter().find(|kernel| kernel["kernel"] == "spmm.row_split").unwrap();
    assert_eq!((&row_split["family"], &row_split["device"]), (&json!("row_split"), &json!("cuda")));
    assert!(row_split["parameters"].as_array().unwrap().iter().any(|one| one["name"] == "lanes"));
    let limits = spmm["limits"].as_array().unwrap();
    let half = limits.iter().find(|limit| limit["value"] == "f16").unwrap();
    assert_eq!((&half["field"], &half["device"]), (&json!("dtype"), &json!("cuda")));
    let first = app.get("/v1/operations").await;
    let tag = first.headers()["etag"].clone();
    let again = app.request(Method::GET, "/v1/operations").header("if-none-match", tag);
    assert_eq!(again.send().await.unwrap().status(), 304);
}
