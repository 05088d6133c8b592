//! A problem in words, from templates: which fields are said, in which order, and where they go without saying.

use super::Value;
use crate::domain::Problem;

/// A piece of text about one field. In the text `{}` stands for its value, and `{label}` for what pages call the value.
#[derive(Debug)]
pub struct Phrase {
    pub text: &'static str,
    pub field: &'static str,
    pub only: Only,
}

/// When a phrase is said. The field may be another than the phrase's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Only {
    Always,
    If(&'static str, Value),
    Unless(&'static str, Value),
}

impl Phrase {
    /// The field's value in a text.
    pub const fn value(field: &'static str, text: &'static str) -> Self {
        Self { text, field, only: Only::Always }
    }

    /// A text that is said where a boolean field is true.
    pub const fn when_true(field: &'static str, text: &'static str) -> Self {
        Self { text, field, only: Only::If(field, Value::Boolean(true)) }
    }

    pub const fn only_if(self, field: &'static str, value: Value) -> Self {
        Self { only: Only::If(field, value), ..self }
    }

    pub const fn unless(self, field: &'static str, value: Value) -> Self {
        Self { only: Only::Unless(field, value), ..self }
    }
}

impl Problem {
    /// The phrases that apply, filled in.
    pub fn say(&self, phrases: &[Phrase]) -> Vec<String> {
        let applies = |phrase: &&Phrase| match phrase.only {
            Only::Always => true,
            Only::If(field, value) => self.value(field) == Some(value),
            Only::Unless(field, value) => self.value(field) != Some(value),
        };
        phrases.iter().filter(applies).map(|phrase| self.filled(phrase)).collect()
    }

    fn filled(&self, phrase: &Phrase) -> String {
        let Some(value) = self.value(phrase.field) else { return phrase.text.to_owned() };
        let value = value.to_string();
        let field = self.op().descriptor().field(phrase.field);
        let choice = field.and_then(|field| field.kind.choice(&value));
        let label = choice.map_or(value.as_str(), |choice| choice.label);
        phrase.text.replace("{label}", label).replace("{}", &value)
    }
}
