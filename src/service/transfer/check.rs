//! What a record has to be, beyond its shape, before it is stored.

use super::record::Record;
use crate::domain::learned::MODEL_VERSION;
use crate::domain::plan::{MEASURED_VERSION, Measured, OLDEST_VERSION};
use crate::domain::{
    Candidate, DeviceClass, Matrix, Outcome, Param, Plan, Problem, Timestamp, TrialState,
};

/// Most characters of a name or an id.
const MOST_NAME: usize = 200;
/// Most parameters of a candidate, and most bytes of a value.
const MOST_PARAMS: usize = 64;
/// Most features of one kind.
const MOST_FEATURES: usize = 4096;
/// How far the clock of another host may be ahead, in milliseconds.
const DAY_MS: i64 = 24 * 3600 * 1000;
/// Most bytes of a model file.
const MOST_MODEL: u64 = 256 << 20;

type Checked = Result<(), String>;

/// Refuses what contradicts itself, and what nothing here could use.
///
/// # Errors
/// The reason, for whoever made the export.
pub fn check(record: &Record) -> Checked {
    match record {
        Record::Plan(sent) => {
            facts(&sent.matrix)?;
            if (sent.plan.matrix, sent.plan.pattern_digest)
                != (sent.matrix.digest, sent.matrix.pattern_digest)
            {
                return Err("the facts are those of another matrix".to_owned());
            }
            plan(&sent.plan)
        }
        Record::Job(job) => {
            id("job", &job.id.0)?;
            class(&job.device_class)?;
            problem(&job.request.problem)?;
            name(job.matrix_name.as_deref())?;
            name(Some(&job.device))?;
            if let Some(store) = &job.store {
                self::store(store)?;
            }
            if !(job.search_seconds.is_finite() && job.search_seconds >= 0.0) {
                return Err(format!("it searched for {} seconds", job.search_seconds));
            }
            if job.finished_at < job.created_at {
                return Err("it ended before it was submitted".to_owned());
            }
            // Lists show the newest first, and retention removes the oldest.
            if job.created_at.0 < 0 || job.finished_at > Timestamp::now().plus_millis(DAY_MS) {
                return Err("it ended in the future, or was submitted before 1970".to_owned());
            }
            job.features.as_ref().map_or(Ok(()), |shared| features(&shared.values))
        }
        Record::Trial(sent) => {
            id("job", &sent.trial.job.0)?;
            candidate(&sent.trial.candidate)?;
            features(sent.features.as_deref().unwrap_or_default())?;
            match &sent.trial.state {
                TrialState::Pruned(_) => Err("it was not tried".to_owned()),
                TrialState::Tried(Outcome::Measured { timing, .. }) => {
                    time("its time", timing.median_us)?;
                    let sound = |us: &f64| us.is_finite() && *us >= 0.0;
                    match timing.samples_us.iter().chain(&timing.ci95_us).all(sound) {
                        true => Ok(()),
                        false => Err("one of its samples is no time".to_owned()),
                    }
                }
                TrialState::Tried(_) => Ok(()),
            }
        }
        Record::Model(sent) => {
            id("model", &sent.card.id.0)?;
            class(&sent.card.scope.device_class)?;
            let version = sent.card.version;
            if version != MODEL_VERSION {
                return Err(format!("its card has the unknown version {version}"));
            }
            if sent.card.digest != sent.contents.digest {
                return Err("the file that follows is not that of the card".to_owned());
            }
            match sent.contents.bytes > MOST_MODEL {
                true => Err(format!("its file has more than {MOST_MODEL} bytes")),
                false => Ok(()),
            }
        }
        Record::Matrix(sent) => facts(&sent.matrix),
        // Whose plans these are is told with each of them from now on.
        Record::Header(header) => store(&header.store),
        Record::File(_) | Record::Part(_) | Record::End(_) => Ok(()),
    }
}

fn plan(plan: &Plan) -> Checked {
    id("plan", &plan.id.0)?;
    if !(OLDEST_VERSION..=MEASURED_VERSION).contains(&plan.version) {
        return Err(format!("the plan has the unknown version {}", plan.version));
    }
    class(&plan.device.class())?;
    problem(&plan.problem)?;
    candidate(&plan.candidate)?;
    if plan.is_predicted() {
        return Err("it was not measured".to_owned());
    }
    if let Some(Measured { median_us, ci95_us: [low, high], .. }) = &plan.measured {
        time("its time", *median_us)?;
        if !(low.is_finite() && high.is_finite() && *low >= 0.0 && low <= high) {
            return Err(format!("its interval is [{low}, {high}]"));
        }
    }
    time("its bound", plan.limit.us)?;
    match &plan.provenance.imported {
        Some(imported) => store(&imported.store),
        None => Ok(()),
    }
}

/// The key text of a problem decides which lookups find a plan, so it has to be one that lookups can ask for.
fn problem(problem: &Problem) -> Checked {
    match problem.out_of_tuned_range() {
        Some((field, why)) => Err(format!("`{}` of its problem: {why}", field.name)),
        None => Ok(()),
    }
}

fn class(class: &DeviceClass) -> Checked {
    // Nothing is near a class whose text does not tell, not even itself.
    let known = class.0.len() <= MOST_NAME && class.distance(class).is_some();
    match known {
        true => plain("device class", &class.0),
        false => Err(format!("the device class `{class}` is unknown here")),
    }
}

fn facts(matrix: &Matrix) -> Checked {
    name(matrix.name.as_deref())?;
    let dense = u128::from(matrix.rows) * u128::from(matrix.cols);
    match u128::from(matrix.nnz) > dense {
        true => Err(format!("a matrix with {} entries in {dense} places", matrix.nnz)),
        false => Ok(()),
    }
}

fn candidate(candidate: &Candidate) -> Checked {
    plain("family", &candidate.family)?;
    if candidate.params.len() > MOST_PARAMS {
        return Err("its candidate has too many parameters".to_owned());
    }
    for (key, value) in &candidate.params {
        plain("parameter", key)?;
        if let Param::Text(text) = value {
            plain("parameter", text)?;
        }
    }
    Ok(())
}

/// No model reads what is not finite, and nothing that describes matrices and candidates makes it.
fn features(values: &[f32]) -> Checked {
    if values.len() > MOST_FEATURES {
        return Err("it has too many features".to_owned());
    }
    match values.iter().all(|value| value.is_finite()) {
        true => Ok(()),
        false => Err("one of its features is no finite number".to_owned()),
    }
}

fn time(what: &str, us: f64) -> Checked {
    match us.is_finite() && us > 0.0 {
        true => Ok(()),
        false => Err(format!("{what} is {us} us")),
    }
}

/// Ids are parts of addresses.
fn id(what: &str, text: &str) -> Checked {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match !text.is_empty() && text.len() <= MOST_NAME && text.chars().all(fine) {
        true => Ok(()),
        false => Err(format!("{text:?} is no id of a {what}")),
    }
}

fn store(text: &str) -> Checked {
    match text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        true => Ok(()),
        false => Err(format!("{text:?} is no id of a store")),
    }
}

fn name(text: Option<&str>) -> Checked {
    text.map_or(Ok(()), |text| plain("name", text))
}

fn plain(what: &str, text: &str) -> Checked {
    match text.chars().count() <= MOST_NAME && !text.chars().any(char::is_control) {
        true => Ok(()),
        false => Err(format!("a {what} of it is too long, or has control characters")),
    }
}
