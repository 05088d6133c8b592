//! Compares the wire types with the schemas of `openapi.yaml`: names, required members, types, nulls and enumerated values.

use super::*;
use crate::domain::{Digest, TrialFilter};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

impl JsonSchema for Digest {
    fn schema_name() -> Cow<'static, str> {
        "Digest".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

impl<T: JsonSchema> JsonSchema for Open<T> {
    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

/// These schemas are generated from the catalogue of operations and compared with it.
impl JsonSchema for Problem {
    fn schema_name() -> Cow<'static, str> {
        "TuningProblem".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!(true)
    }
}

/// A schema with references resolved and equivalent spellings unified.
#[derive(Debug, Default)]
struct Shape {
    nullable: bool,
    types: BTreeSet<String>,
    /// The permitted strings, if they are enumerated.
    words: Option<BTreeSet<String>>,
    /// Members by name, and whether they are required.
    members: BTreeMap<String, (bool, Shape)>,
    /// The schema of the elements of an array.
    items: Option<Box<Shape>>,
    /// The schema of the values of an object with arbitrary names.
    values: Option<Box<Shape>>,
    either: Vec<Shape>,
}

/// A document with schemas, and the names of its definitions that were used.
struct Document {
    root: Value,
    used: BTreeSet<String>,
}

impl Document {
    fn of(root: Value) -> Self {
        Self { root, used: BTreeSet::new() }
    }

    fn at(&mut self, pointer: &str) -> Shape {
        let schema = self.root.pointer(pointer).unwrap_or_else(|| panic!("no {pointer}")).clone();
        self.shape(&schema)
    }

    fn shape(&mut self, schema: &Value) -> Shape {
        if let Some(reference) = schema["$ref"].as_str() {
            self.used.insert(reference.rsplit('/').next().unwrap().to_owned());
            return self.at(reference.trim_start_matches('#'));
        }
        let mut shape = Shape::default();
        match &schema["type"] {
            Value::String(name) => shape.add_type(name),
            Value::Array(names) => names.iter().for_each(|n| shape.add_type(n.as_str().unwrap())),
            _ => {}
        }
        let words = schema["enum"].as_array().cloned().unwrap_or_default();
        let words = words.iter().chain(schema.get("const")).filter_map(Value::as_str);
        shape.add_words(words.map(str::to_owned).collect());
        let required: BTreeSet<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        for (name, member) in schema["properties"].as_object().into_iter().flatten() {
            let member = self.shape(member);
            shape.members.insert(name.clone(), (required.contains(name.as_str()), member));
        }
        if schema["items"].is_object() {
            shape.items = Some(Box::new(self.shape(&schema["items"])));
        }
        if schema["additionalProperties"].is_object() {
            shape.values = Some(Box::new(self.shape(&schema["additionalProperties"])));
        }
        for part in schema["allOf"].as_array().into_iter().flatten() {
            let part = self.shape(part);
            shape.merge(part);
        }
        for choice in ["oneOf", "anyOf"] {
            for one in schema[choice].as_array().into_iter().flatten() {
                let one = self.shape(one);
                shape.either.push(one);
            }
        }
        shape.simplified()
    }

    /// Definitions that no compared schema refers to.
    fn unused(&self, definitions: &str) -> BTreeSet<String> {
        let all = self.root.pointer(definitions).unwrap().as_object().unwrap();
        all.keys().filter(|name| !self.used.contains(*name)).cloned().collect()
    }
}

impl Shape {
    fn add_type(&mut self, name: &str) {
        match name {
            "null" => self.nullable = true,
            name => _ = self.types.insert(name.to_owned()),
        }
    }

    fn add_words(&mut self, words: BTreeSet<String>) {
        if !words.is_empty() {
            self.add_type("string");
            self.words.get_or_insert_default().extend(words);
        }
    }

    fn merge(&mut self, part: Self) {
        self.nullable |= part.nullable;
        self.types.extend(part.types);
        self.add_words(part.words.unwrap_or_default());
        self.members.extend(part.members);
        self.items = part.items.or(self.items.take());
        self.values = part.values.or(self.values.take());
        self.either.extend(part.either);
    }

    fn is_only_null(&self) -> bool {
        self.nullable && self.types.is_empty() && self.either.is_empty()
    }

    fn is_scalar(&self) -> bool {
        self.either.is_empty() && !self.types.contains("object") && !self.types.contains("array")
    }

    /// Removes a choice with only one alternative, and merges a choice between scalars into one scalar of several types.
    fn simplified(mut self) -> Self {
        let nulls = self.either.iter().filter(|one| one.is_only_null()).count();
        self.nullable |= nulls > 0;
        self.either.retain(|one| !one.is_only_null());
        if self.either.len() == 1 || self.either.iter().all(Self::is_scalar) {
            for one in std::mem::take(&mut self.either) {
                self.merge(one);
            }
        }
        self
    }

    fn is_anything(&self) -> bool {
        self.types.is_empty() && self.either.is_empty()
    }

    /// Collects the differences between this type and the schema in the file at position `at`.
    fn differences(&self, file: &Self, at: &str, found: &mut Vec<String>) {
        if self.is_anything() {
            return;
        }
        let mut same = |what: &str, ours: String, theirs: String| {
            if ours != theirs {
                found.push(format!("{at}: {what} is {ours} here, {theirs} in the file"));
            }
        };
        same("type", format!("{:?}", self.types), format!("{:?}", file.types));
        same("the list of words", format!("{:?}", self.words), format!("{:?}", file.words));
        same("the number of choices", self.either.len().to_string(), file.either.len().to_string());
        let names: BTreeSet<&String> = self.members.keys().chain(file.members.keys()).collect();
        for name in names {
            let at = format!("{at}/{name}");
            match (self.members.get(name), file.members.get(name)) {
                (Some((needed, ours)), Some((listed, theirs))) => {
                    // A member that may be absent is never null: `given` and `skip_serializing_if` ensure this.
                    let null = (*needed && ours.nullable, theirs.nullable);
                    if needed != listed || null.0 != null.1 {
                        found.push(format!("{at}: required {needed}/{listed}, nullable {null:?}"));
                    }
                    ours.differences(theirs, &at, found);
                }
                (ours, _) => {
                    let place = if ours.is_some() {
                        "missing in the schema"
                    } else {
                        "missing in the type"
                    };
                    found.push(format!("{at} is {place}"));
                }
            }
        }
        let pairs = [("[]", &self.items, &file.items), ("{}", &self.values, &file.values)];
        for (mark, ours, theirs) in pairs {
            match (ours, theirs) {
                (Some(ours), Some(theirs)) => {
                    ours.differences(theirs, &format!("{at}{mark}"), found);
                }
                (None, None) => {}
                _ => found.push(format!("{at}{mark} is on one side only")),
            }
        }
        for (ours, theirs) in self.either.iter().zip(&file.either) {
            ours.differences(theirs, &format!("{at}|"), found);
        }
    }
}

/// The schema of a type in responses.
fn sent<T: JsonSchema>() -> Value {
    SchemaSettings::draft2020_12()
        .for_serialize()
        .into_generator()
        .into_root_schema_for::<T>()
        .into()
}

/// The schema of a type in requests.
fn received<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().for_deserialize();
    settings.into_generator().into_root_schema_for::<T>().into()
}

/// The schema of a 200 answer to `GET`.
fn answer(path: &str) -> String {
    let path = path.replace('/', "~1");
    format!("/paths/{path}/get/responses/200/content/application~1json/schema")
}

/// Members that are strings in the types and enumerations in the file.
fn listed(at: &str) -> Option<BTreeSet<String>> {
    let words = |words: &[&str]| Some(words.iter().map(|&word| word.to_owned()).collect());
    if at == "Index/name" {
        return words(&["sparsetune"]);
    }
    // One kind each: the type has both.
    if at == "Job/kind" {
        return words(&["tune"]);
    }
    if at == "TrainingJob/kind" {
        return words(&["train"]);
    }
    if at.ends_with("/arrays[]/element") {
        return words(&["u16", "u32", "f16", "bf16", "f32", "f64"]);
    }
    let (place, member) = at.rsplit_once('/')?;
    if place != "Trial" && !place.ends_with("/trial") && !place.ends_with("/trials/items[]") {
        return None;
    }
    // The states of trials, and `tried` for all states but one.
    let mut states = Document::of(received::<TrialFilter>()).at("").words?;
    states.remove("tried");
    if member == "counted_as" {
        states.insert("stopped".to_owned());
    }
    (member == "state" || member == "counted_as").then_some(states)
}

/// Inserts the values of [`listed`].
fn list_words(shape: &mut Shape, at: &str) {
    shape.words = listed(at).or(shape.words.take());
    for (name, (_, member)) in &mut shape.members {
        list_words(member, &format!("{at}/{name}"));
    }
    if let Some(items) = &mut shape.items {
        list_words(items, &format!("{at}[]"));
    }
}

#[test]
fn the_contract_says_what_the_types_say() {
    let contract = serde_yaml_ng::from_str(include_str!("../../openapi.yaml")).unwrap();
    let mut contract = Document::of(contract);
    let named = [
        ("Index", sent::<Index>()),
        ("Status", sent::<Status>()),
        ("Matrix", sent::<Matrix>()),
        ("MatrixProfile", sent::<Profile>()),
        ("Candidate", sent::<Candidate>()),
        ("Trial", sent::<Trial>()),
        ("Plan", sent::<Plan>()),
        ("Lookup", sent::<Lookup>()),
        ("KeptBundle", sent::<KeptBundle>()),
        ("WorkerDevice", sent::<WorkerDevice>()),
        ("Quarantined", sent::<Quarantined>()),
        ("Model", sent::<AnalyticModel>()),
        ("LearnedModel", sent::<LearnedModel>()),
        ("WholeModel", sent::<WholeModel>()),
        ("Activation", sent::<Activation>()),
        ("ModelKind", received::<ModelKind>()),
        ("Job", sent::<Job>()),
        ("TrainingJob", sent::<Training>()),
        ("Token", sent::<Token>()),
        ("MadeToken", sent::<MadeToken>()),
        ("AuditEntry", sent::<AuditEntry>()),
        ("Webhook", sent::<Webhook>()),
        ("MadeWebhook", sent::<MadeWebhook>()),
        ("Delivery", sent::<Delivery>()),
        ("ImportReport", sent::<ImportReport>()),
    ];
    let paths = [
        ("/v1/matrices", sent::<Page<Matrix>>()),
        ("/v1/matrices/{digest}/plans", sent::<Page<Plan>>()),
        ("/v1/jobs/{id}/trials", sent::<Page<Trial>>()),
        ("/v1/devices", sent::<Devices>()),
        ("/v1/overview", sent::<Overview>()),
        ("/v1/quarantine", sent::<Page<Quarantined>>()),
        ("/v1/pins", sent::<Pins>()),
        ("/v1/models", sent::<Models>()),
        ("/v1/models/activations", sent::<Activations>()),
        ("/v1/tokens", sent::<Tokens>()),
        ("/v1/audit", sent::<Page<AuditEntry>>()),
        ("/v1/webhooks", sent::<Webhooks>()),
        ("/v1/webhooks/{id}/deliveries", sent::<Page<Delivery>>()),
    ];
    let bodies = [
        ("/v1/models/{id}/activate", received::<ActivateRequest>()),
        ("/v1/models/roll-back", received::<RollBackRequest>()),
        ("/v1/tokens", received::<TokenRequest>()),
        ("/v1/webhooks", received::<WebhookRequest>()),
    ];
    let named = named
        .into_iter()
        .map(|(name, schema)| (name.to_owned(), format!("/components/schemas/{name}"), schema));
    let paths = paths.into_iter().map(|(path, schema)| (path.to_owned(), answer(path), schema));
    let bodies = bodies.into_iter().map(|(path, schema)| {
        let path = path.replace('/', "~1");
        let body = format!("/paths/{path}/post/requestBody/content/application~1json/schema");
        (body.clone(), body, schema)
    });
    let mut found = Vec::new();
    for (name, pointer, schema) in named.chain(paths).chain(bodies) {
        contract.used.extend(pointer.strip_prefix("/components/schemas/").map(str::to_owned));
        let mut ours = Document::of(schema).at("");
        list_words(&mut ours, &name);
        ours.differences(&contract.at(&pointer), &name, &mut found);
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    let unseen = contract.unused("/components/schemas");
    let known = [
        "AnyJob",
        "Event",
        // The catalogue: `tests/http/openapi.rs` compares an answer with these schemas.
        "Family",
        "Field",
        "JobRequest",
        "Operation",
        "Problem",
        "Rules",
        "ServerSentEvent",
        "TrainRequest",
        "ValueLimit",
    ];
    assert_eq!(unseen.iter().map(String::as_str).collect::<Vec<_>>(), known);
}
