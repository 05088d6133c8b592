//! What goes from one store to another, and which of two plans answers a key.

use super::plan::Measured;
use super::{
    DeviceClass, Digest, JobId, JobRequest, Matrix, Op, Plan, PlanId, StoppedBy, Timestamp, Trial,
};
use serde::{Deserialize, Serialize};

/// Where a plan was measured, if that was another store's service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Imported {
    /// Id of the store whose service measured it.
    pub store: String,
    /// When it was taken in here; when and by which version it was measured, the plan itself says.
    pub at: Timestamp,
    /// Why it stands before or behind the plans that were here, in words; absent if there were none of its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standing: Option<String>,
    /// Its program was left out of the export: the candidate can be lowered again from the matrix.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_program: bool,
}

impl Imported {
    /// As a sentence, of a plan that was measured at this time by this version.
    pub fn told(&self, measured_at: Timestamp, version: &str) -> String {
        let Self { store, at, standing, without_program } = self;
        let (measured_at, at) = (measured_at.to_rfc3339(), at.to_rfc3339());
        let mut told = format!(
            "it was measured by the service of another store, {store}, at {measured_at} with version {version}, and taken in at {at}"
        );
        if let Some(standing) = standing {
            told.push_str(&format!("; {standing}"));
        }
        if *without_program {
            told.push_str("; its program was not brought along: tune the matrix here, or import it with its files");
        }
        told
    }
}

/// What an export has of a store. The default is all that has no files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Selection {
    pub plans: bool,
    /// Ended searches with their tried candidates.
    pub trials: bool,
    pub models: bool,
    /// With the programs and arrays of plans.
    pub files: bool,
    /// With the matrices of plans and searches, as far as they are stored.
    pub matrices: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_class: Option<DeviceClass>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<Op>,
    /// Digest of a matrix or of a pattern. Models are of no matrix: there are none then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matrix: Option<Digest>,
    /// Made at this time or later: plans, submitted searches, models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Made before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

impl Default for Selection {
    fn default() -> Self {
        Self {
            plans: true,
            trials: true,
            models: true,
            files: false,
            matrices: false,
            device_class: None,
            op: None,
            matrix: None,
            since: None,
            until: None,
        }
    }
}

impl Selection {
    /// Only these of `plans`, `trials`, `models` and `none`, between commas.
    ///
    /// # Errors
    /// One of them is another word.
    pub fn only(&mut self, parts: &str) -> Result<(), String> {
        (self.plans, self.trials, self.models) = (false, false, false);
        for part in parts.split(',') {
            match part.trim() {
                "plans" => self.plans = true,
                "trials" => self.trials = true,
                "models" => self.models = true,
                "none" => {}
                other => {
                    return Err(format!("`{other}` is none of plans, trials, models and none"));
                }
            }
        }
        Ok(())
    }

    /// Whether something of this scope and time is selected.
    pub fn admits(&self, op: Op, class: &DeviceClass, at: Timestamp) -> bool {
        self.op.is_none_or(|wanted| wanted == op)
            && self.device_class.as_ref().is_none_or(|wanted| wanted == class)
            && self.since.is_none_or(|since| at >= since)
            && self.until.is_none_or(|until| at < until)
    }
}

/// How many of one kind an import took in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    pub new: u64,
    /// That were here already, under the same name.
    pub known: u64,
    /// That this service cannot use; `left_out` says why.
    pub left_out: u64,
}

/// What an import took in, or would.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The store that the export is of.
    pub store: String,
    /// When the export was made.
    pub made_at: String,
    /// Nothing was stored.
    pub dry_run: bool,
    pub plans: Taken,
    /// Of the new plans those that stand behind one that was here.
    pub plans_behind: u64,
    /// Of the new plans those that stand before one that was here.
    pub plans_before: u64,
    /// Of the new plans those without their program.
    pub plans_without_program: u64,
    /// Ended searches.
    pub jobs: Taken,
    pub trials: Taken,
    pub models: Taken,
    pub matrices: Taken,
    /// Programs and arrays of plans.
    pub files: Taken,
    /// The first of what was left out, in words.
    pub left_out: Vec<String>,
}

/// Which of two measured plans of one key answers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    Before(String),
    Behind(String),
}

/// Decides whether a plan from elsewhere answers before the one that is here. `suits` says of a plan that it was made with the
/// software of a device that is registered here.
///
/// 1. If one of them suits, and the other does not, it answers.
/// 2. If both were measured under comparable conditions (the same matrix with the same software, by the same clock and for the same
///    number of calls), the faster one answers. If their intervals touch, the one that was here does.
/// 3. Otherwise the later measurement answers.
pub fn standing(incoming: &Plan, here: &Plan, suits: impl Fn(&Plan) -> bool) -> Standing {
    match (suits(incoming), suits(here)) {
        (true, false) => {
            let why = "it was measured with the software of this device, and the plan that was here was not";
            return Standing::Before(why.to_owned());
        }
        (false, true) => {
            let why = "the plan that was here was measured with the software of this device, and it was not";
            return Standing::Behind(why.to_owned());
        }
        _ => {}
    }
    if let (Some(new), Some(old)) = (&incoming.measured, &here.measured)
        && comparable((incoming, new), (here, old))
    {
        let ([low, high], [least, most]) = (costs(incoming, new), costs(here, old));
        let (us, than) = (new.median_us, old.median_us);
        return if high < least {
            Standing::Before(format!(
                "{us:.3} us against {than:.3} us of the plan that was here, under the same conditions"
            ))
        } else if most < low {
            Standing::Behind(format!(
                "{us:.3} us against {than:.3} us of the plan that was here, under the same conditions"
            ))
        } else {
            let why = "it is as fast as the plan that was here, under the same conditions, within the noise";
            Standing::Behind(why.to_owned())
        };
    }
    if incoming.created_at > here.created_at {
        Standing::Before(
            "it was measured later than the plan that was here, under other conditions".to_owned(),
        )
    } else {
        Standing::Behind(
            "the plan that was here was measured later, under other conditions".to_owned(),
        )
    }
}

fn comparable((a, of_a): (&Plan, &Measured), (b, of_b): (&Plan, &Measured)) -> bool {
    let dense = |plan: &Plan| plan.device.dense_vendor.clone();
    a.matrix == b.matrix
        && a.provenance.environment == b.provenance.environment
        && dense(a) == dense(b)
        && of_a.clock == of_b.clock
        && a.expected_calls == b.expected_calls
}

/// The interval of the time that the plan was chosen by, in microseconds: of one call, or of all expected ones with what comes
/// before them.
fn costs(plan: &Plan, measured: &Measured) -> [f64; 2] {
    let calls = plan.expected_calls.unwrap_or(1) as f64;
    let before = match plan.expected_calls {
        Some(_) => plan.preprocess_ms.unwrap_or(0.0) * 1000.0,
        None => 0.0,
    };
    measured.ci95_us.map(|us| before + calls * us)
}

/// A plan with the facts of its matrix, which may be stored no more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SentPlan {
    pub plan: Plan,
    pub matrix: Matrix,
    /// Whether another plan of its key answers in the store of the export.
    pub superseded: bool,
}

/// A search that succeeded: what its trials need to be learned from, and to be known by.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SentJob {
    pub id: JobId,
    /// Id of the store whose service measured it, if that is not the store of the export.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    pub request: JobRequest,
    /// The device as its host named it.
    pub device: String,
    pub device_class: DeviceClass,
    /// Driver, compiler and vendor library, if the plan is there that tells them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<String>,
    pub pattern: Digest,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matrix_name: Option<String>,
    /// Rows, columns and entries of the matrix; absent if neither it nor the plan is stored any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<[u64; 3]>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_by: Option<StoppedBy>,
    pub search_seconds: f64,
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    pub finished_at: Timestamp,
    /// What its candidates have in common, for training; absent in searches of versions that kept none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub features: Option<SharedFeatures>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedFeatures {
    /// The version of these, and of those of the trials.
    pub version: u32,
    /// Little-endian f32, in base64.
    #[serde(with = "floats")]
    pub values: Vec<f32>,
    pub created_at: Timestamp,
}

/// A candidate of a search that was tried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SentTrial {
    pub trial: Trial,
    /// The candidate's own features: little-endian f32, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "some_floats")]
    pub features: Option<Vec<f32>>,
}

mod floats {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub fn serialize<S: Serializer>(values: &[f32], to: S) -> Result<S::Ok, S::Error> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        to.serialize_str(&STANDARD.encode(bytes))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f32>, D::Error> {
        let text = String::deserialize(from)?;
        let bytes = STANDARD.decode(text).map_err(de::Error::custom)?;
        let (words, rest) = bytes.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(de::Error::custom("features are no whole number of f32 values"));
        }
        Ok(words.iter().map(|word| f32::from_le_bytes(*word)).collect())
    }
}

mod some_floats {
    use serde::{Deserializer, Serializer};

    pub fn serialize<S: Serializer>(values: &Option<Vec<f32>>, to: S) -> Result<S::Ok, S::Error> {
        match values {
            Some(values) => super::floats::serialize(values, to),
            None => to.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<f32>>, D::Error> {
        super::floats::deserialize(from).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::plan::{Limit, Provenance, TrialCounts, Validity};
    use crate::domain::{
        Candidate, Clock, Clocks, Device, Dtype, L2Policy, Layout, Problem, Spmm, StoppedBy,
    };

    fn plan(us: f64, environment: &str, at: i64) -> Plan {
        Plan {
            version: crate::domain::plan::MEASURED_VERSION,
            id: PlanId(format!("{us}-{environment}-{at}")),
            matrix: Digest::of(b"m"),
            pattern_digest: Digest::of(b"p"),
            problem: Problem::Spmm(Spmm::new(8, Dtype::F32, Layout::Row)),
            l2_policy: L2Policy::Warm,
            device: Device::NONE,
            candidate: Candidate::new("row_split"),
            measured: Some(Measured {
                median_us: us,
                ci95_us: [us * 0.95, us * 1.05],
                samples: 9,
                rel_error: 0.0,
                clock: Clock::Isolated,
                clocks: Clocks::default(),
            }),
            tie: false,
            runner_up: None,
            finals: Vec::new(),
            baseline: None,
            no_baseline: None,
            speedup: None,
            limit: Limit {
                us: 1.0,
                bound: super::super::plan::Bound::Bytes,
                fraction: 0.5,
                bytes: 1,
            },
            predicted: None,
            model_error: None,
            funnel: Vec::new(),
            judged: Vec::new(),
            intensity: Vec::new(),
            trials: TrialCounts::default(),
            alternatives: Vec::new(),
            preprocess_ms: Some(0.0),
            expected_calls: None,
            break_even_calls: None,
            validity: Validity {
                values_may_change: true,
                pattern_may_change: false,
                dense_must_be_finite: false,
                n_may_change: false,
                update_values_ms: 0.0,
            },
            launch: None,
            host: None,
            resources: None,
            provenance: Provenance {
                job: None,
                model: None,
                model_of: None,
                version: "0.1.0".to_owned(),
                environment: environment.to_owned(),
                kernel_digest: None,
                seed: 1,
                stopped_by: StoppedBy::Completed,
                search_seconds: 1.0,
                narrowed: None,
                imported: None,
            },
            created_at: Timestamp(at),
        }
    }

    #[test]
    fn the_rule_of_conflicts() {
        let before = |new: &Plan, old: &Plan, suits: &str| {
            let suits = |plan: &Plan| plan.provenance.environment == suits;
            matches!(standing(new, old, suits), Standing::Before(_))
        };
        // Comparable: the faster one, whichever is newer; within the noise what was here.
        assert!(before(&plan(1.0, "a", 1), &plan(2.0, "a", 2), "a"));
        assert!(!before(&plan(2.0, "a", 2), &plan(1.0, "a", 1), "a"));
        assert!(!before(&plan(1.0, "a", 2), &plan(1.02, "a", 1), ""));
        // Not comparable: the later one, however slow.
        assert!(before(&plan(9.0, "a", 2), &plan(1.0, "b", 1), ""));
        assert!(!before(&plan(1.0, "a", 1), &plan(9.0, "b", 2), ""));
        let other = Plan { matrix: Digest::of(b"other values"), ..plan(1.0, "a", 1) };
        assert!(!before(&other, &plan(2.0, "a", 2), ""));
        // What suits the devices here comes first in any case.
        assert!(before(&plan(9.0, "a", 1), &plan(1.0, "b", 2), "a"));
        assert!(!before(&plan(1.0, "b", 2), &plan(9.0, "a", 1), "a"));
        // With a number of calls, what comes before them counts.
        let calls =
            |us, ms| Plan { expected_calls: Some(10), preprocess_ms: Some(ms), ..plan(us, "a", 1) };
        assert!(!before(&calls(1.0, 5.0), &calls(2.0, 0.0), ""));
        assert!(before(&calls(1.0, 0.0), &calls(2.0, 0.0), ""));
    }

    #[test]
    fn a_selection_is_by_scope_and_time() {
        let class = DeviceClass("cpu/x/avx2/2t".to_owned());
        let all = Selection::default();
        assert!(all.admits(Op::Spmm, &class, Timestamp(5)));
        let some =
            Selection { since: Some(Timestamp(5)), until: Some(Timestamp(6)), ..all.clone() };
        assert!(some.admits(Op::Spmm, &class, Timestamp(5)));
        assert!(
            !some.admits(Op::Spmm, &class, Timestamp(6))
                && !some.admits(Op::Spmm, &class, Timestamp(4))
        );
        assert!(!Selection { op: Some(Op::Sptrsv), ..all }.admits(Op::Spmm, &class, Timestamp(5)));
    }
}
